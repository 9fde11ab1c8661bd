"""Burgers' equation with DeepXDE, in the settings of its example: homogenized Adam, then DeepXDE's own L-BFGS.

DDE_BACKEND=pytorch python docs/examples/deepxde_burgers.py upgrad --iterations 15000
"""

import argparse

import deepxde as dde
import numpy as np

import gradhomog
from gradhomog_adapters.deepxde import homogenize


def burgers(x, u):
    u_x, u_t = dde.grad.jacobian(u, x, j=0), dde.grad.jacobian(u, x, j=1)
    return u_t + u * u_x - 0.01 / np.pi * dde.grad.hessian(u, x, i=0, j=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homogenizers", nargs="?", default="upgrad")
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--lbfgs", type=int, default=100, help="iterations of L-BFGS; DeepXDE's default is 15000")
    parser.add_argument("--points", type=int, default=2540, help="inside; 1/32 of them on the boundary, 1/16 at t = 0")
    options = parser.parse_args()
    dde.config.set_random_seed(0)
    domain = dde.geometry.GeometryXTime(dde.geometry.Interval(-1, 1), dde.geometry.TimeDomain(0, 0.99))
    boundary = dde.icbc.DirichletBC(domain, lambda x: 0, lambda x, on_boundary: on_boundary)
    initial = dde.icbc.IC(domain, lambda x: -np.sin(np.pi * x[:, :1]), lambda x, on_initial: on_initial)
    points = {"num_domain": options.points, "num_boundary": options.points // 32, "num_initial": options.points // 16}
    data = dde.data.TimePDE(domain, burgers, [boundary, initial], **points)
    model = dde.Model(data, dde.nn.FNN([2, 20, 20, 20, 1], "tanh", "Glorot normal"))

    pipe = gradhomog.pipeline(options.homogenizers)
    model.compile("adam", lr=1e-3)
    step = homogenize(model, pipe)
    model.train(iterations=options.iterations)
    print("weights:", step.weights())

    dde.optimizers.set_LBFGS_options(maxiter=options.lbfgs)
    dde.optimizers.LBFGS_options["iter_per_step"] = min(options.lbfgs, 1000)
    model.compile("L-BFGS")  # this phase is DeepXDE's
    model.train()
    print(f"mean residual: {np.abs(model.predict(data.train_x_all, operator=burgers)).mean():.2e}")


if __name__ == "__main__":
    main()
