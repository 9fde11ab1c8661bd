"""The Poisson equation by a physics-informed network and Gauss-Newton steps, with one row per residual and no weights.

python docs/examples/pinn_gauss_newton.py --steps 50
"""

import argparse
import math

import torch
from torch import nn
from torch.func import hessian, vmap

import gradhomog


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homogenizers", nargs="?", default='gauss_newton(adaptive=true, scale="paper")')
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--weight", type=float, default=1.0, help="factor of the boundary's loss: no need to tune it")
    parser.add_argument("--attempts", type=int, default=10, help="1: take every step")
    options = parser.parse_args()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).double()

    def solution(x):
        return torch.sin(math.pi * x[..., 0]) * torch.sin(math.pi * x[..., 1])

    def equation(x):  # the residual at one point [2]
        laplacian = hessian(lambda z: network(z)[0])(x).trace()
        return laplacian + 2 * math.pi**2 * solution(x)

    def boundary(x):
        return math.sqrt(options.weight) * network(x)

    side = torch.linspace(0, 1, 30).double()
    inside = torch.cartesian_prod(side[1:-1], side[1:-1])
    sides = torch.cat([torch.stack([torch.full_like(side, a), side], 1) for a in (0, 1)])
    terms = [(equation, inside), (boundary, torch.cat([sides, sides.flip(1)]))]

    pipe = gradhomog.pipeline(options.homogenizers)
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for _ in range(options.steps):
            losses, rows = gradhomog.residual_rows(terms, network)
            for attempt in range(options.attempts):
                direction = pipe.combine(rows, losses)
                for name, parameter in parameters.items():
                    parameter -= direction[name]
                total = sum(vmap(residual)(points).square().sum() / len(points) for residual, points in terms) / 2
                if total < losses.sum() or attempt + 1 == options.attempts:
                    break
                for name, parameter in parameters.items():  # the next call has the same losses: more damping
                    parameter += direction[name]

        points = torch.rand(10_000, 2).double()
        error = (network(points)[:, 0] - solution(points)).norm() / solution(points).norm()
    print(f"loss: {total:.2e}")
    print(f"relative L2 error: {error:.2e}")


if __name__ == "__main__":
    main()
