"""The Poisson equation of PINA's examples, with the gradients of its two conditions homogenized.

python docs/examples/pina_poisson.py upgrad --epochs 1000
"""

import argparse

import lightning
import torch
from pina import Trainer
from pina.model import FeedForward
from pina.optim import TorchOptimizer
from pina.problem.zoo import Poisson2DSquareProblem
from pina.solver import PhysicsInformedSingleModelSolver

import gradhomog
from gradhomog_adapters.pina import HomogenizedWeighting


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homogenizers", nargs="?", default="upgrad")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lightning.seed_everything(options.seed, verbose=False)
    problem = Poisson2DSquareProblem()
    problem.discretise_domain(n=400, mode="random", domains="D")
    problem.discretise_domain(n=100, mode="random", domains="boundary")

    weighting = HomogenizedWeighting(gradhomog.pipeline(options.homogenizers))
    solver = PhysicsInformedSingleModelSolver(
        problem,
        FeedForward(2, 1, n_layers=2, inner_size=50),
        optimizer=TorchOptimizer(torch.optim.Adam, lr=1e-3),
        weighting=weighting,
    )
    quiet = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    Trainer(solver, max_epochs=options.epochs, callbacks=[weighting], **quiet).train()

    print("weights:", weighting.last_saved_weights())
    points = problem.spatial_domain.sample(100, "grid")  # per side
    with torch.no_grad():
        error, exact = (solver(points) - problem.solution(points)).tensor, problem.solution(points).tensor
    print(f"relative L2 error: {float(error.norm() / exact.norm()):.3f}")


if __name__ == "__main__":
    main()
