"""Solve the Helmholtz equation with DeepXDE: the settings of DeepXDE's own example, and homogenized Adam.

DDE_BACKEND=pytorch python docs/examples/deepxde_helmholtz.py upgrad --weight 100 --iterations 5000
"""

import argparse

import deepxde as dde
import numpy as np
import torch

import gradhomog
from gradhomog_adapters.deepxde import homogenize

K = 4 * np.pi  # wave number: two waves along each side


def helmholtz(x, u):
    forcing = K**2 * torch.sin(K * x[:, :1]) * torch.sin(K * x[:, 1:])
    return -dde.grad.hessian(u, x, i=0, j=0) - dde.grad.hessian(u, x, i=1, j=1) - K**2 * u - forcing


def solution(x):
    return np.sin(K * x[:, :1]) * np.sin(K * x[:, 1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homogenizers", nargs="?", default="upgrad")
    parser.add_argument("--weight", type=float, default=100, help="DeepXDE's weight of the boundary loss")
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--width", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dde.config.set_random_seed(options.seed)
    square = dde.geometry.Rectangle([0, 0], [1, 1])
    boundary = dde.icbc.DirichletBC(square, lambda x: 0, lambda x, on_boundary: on_boundary)
    points = {"num_domain": 400, "num_boundary": 80, "num_test": 3600}
    data = dde.data.PDE(square, helmholtz, boundary, solution=solution, **points)
    net = dde.nn.FNN([2, *[options.width] * 3, 1], "sin", "Glorot uniform")
    model = dde.Model(data, net)

    model.compile("adam", lr=1e-3, metrics=["l2 relative error"], loss_weights=[1, options.weight])
    step = homogenize(model, gradhomog.pipeline(options.homogenizers))
    _, state = model.train(iterations=options.iterations)
    print("weights:", step.weights())
    print(f"relative L2 error: {state.metrics_test[0]:.3f}")


if __name__ == "__main__":
    main()
