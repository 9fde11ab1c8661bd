"""Small DeepXDE models in float64, and their training."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from . import measures

os.environ["DDE_BACKEND"] = "pytorch"
dde: Any = pytest.importorskip("deepxde", reason="needs the extra `deepxde`")
torch.set_default_device(None)  # DeepXDE sets CUDA where there is a GPU, for all tests of the process


def burgers(x: Tensor, u: Tensor) -> Tensor:
    u_x, u_t = (dde.grad.jacobian(u, x, i=0, j=j) for j in (0, 1))
    return u_t + u * u_x - 0.01 / np.pi * dde.grad.hessian(u, x, i=0, j=0)


def burgers_data(pde: Any = burgers) -> Any:
    """Burgers' equation with a boundary and an initial condition, as in DeepXDE's example, on few points."""
    dde.config.set_random_seed(0)
    domain = dde.geometry.GeometryXTime(dde.geometry.Interval(-1, 1), dde.geometry.TimeDomain(0, 0.99))
    boundary = dde.icbc.DirichletBC(domain, lambda x: 0, lambda _, on_boundary: on_boundary)
    initial = dde.icbc.IC(domain, lambda x: -np.sin(np.pi * x[:, :1]), lambda _, on_initial: on_initial)
    return dde.data.TimePDE(domain, pde, [boundary, initial], num_domain=20, num_boundary=8, num_initial=8)


def model(data: Any = None, *, regularization: Any = None, outputs: int = 1) -> Any:
    """A model that is not compiled; the same parameters at every call."""
    data = burgers_data() if data is None else data
    dde.config.set_random_seed(0)
    net = dde.nn.FNN([2, 8, 8, outputs], "tanh", "Glorot uniform", regularization=regularization)
    return dde.Model(data, net)


def compiled(optimizer: Any = "sgd", data: Any = None, regularization: Any = None, **options: Any) -> Any:
    found = model(data, regularization=regularization)
    found.compile(optimizer, **{"lr": 0.01, "verbose": 0, **options})
    return found


def train(trained: Any, iterations: int | None = 5) -> None:
    trained.train(iterations=iterations, display_every=1, verbose=0)


def parameters(trained: Any) -> Tensor:
    return measures.parameters(trained.net)


def rows(trained: Any) -> Tensor:
    """The gradients of DeepXDE's own losses, `[losses, params]`."""
    return measures.rows(trained.outputs_losses_train(*trained.data.train_next_batch())[1], trained.net)
