"""Small PINA solvers in float64, and their training."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

_format = warnings.formatwarning
for _name in ("pina.trainer", "pina.solver", "pina.problem.zoo", "pina.weighting", "pina.callback", "pina.optim"):
    pytest.importorskip(_name, reason="needs the extra `pina`")
warnings.formatwarning = _format  # PINA sets its own for the whole process

from pina import Trainer  # noqa: E402
from pina.model import FeedForward  # noqa: E402
from pina.optim import TorchOptimizer  # noqa: E402
from pina.problem.zoo import InversePoisson2DSquareProblem, Poisson2DSquareProblem  # noqa: E402
from pina.solver import PhysicsInformedSingleModelSolver  # noqa: E402

QUIET = {
    "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
    "logger": False,
}  # fmt: skip


def poisson() -> Any:
    """The Poisson equation on a square with the conditions `boundary` and `D`, on the same points at every call."""
    return _sampled(Poisson2DSquareProblem())


def inverse_poisson() -> Any:
    """A Poisson equation with unknown coefficients."""
    torch.manual_seed(0)  # their initial values are random
    return _sampled(InversePoisson2DSquareProblem(load=False))


def _sampled(problem: Any) -> Any:
    random.seed(0)  # PINA chooses edges of the boundary by it
    torch.manual_seed(0)
    for domain in problem.domains:
        problem.discretise_domain(n=12, mode="random", domains=domain)
    return problem


def solver(
    weighting: Any = None, *, problem: Any = None, optimizer: Any = torch.optim.SGD, kind: Any = None, **options: Any
) -> Any:
    """A solver with the same parameters at every call."""
    problem = poisson() if problem is None else problem
    torch.manual_seed(0)
    network = FeedForward(2, 1, n_layers=1, inner_size=6)
    given = TorchOptimizer(optimizer, **{"lr": 1e-3, **options})
    return (kind or PhysicsInformedSingleModelSolver)(problem, network, optimizer=given, weighting=weighting)


def train(trained: Any, epochs: int = 4, callbacks: Sequence[Any] = (), path: Any = None, **options: Any) -> Trainer:
    trainer = Trainer(trained, max_epochs=epochs, callbacks=[*callbacks], **{**QUIET, **options})
    trainer.train(ckpt_path=path)
    return trainer
