"""Sinusoid regression with the settings of Finn et al. 2017, section 5.1: error after 0 to 10 inner steps.

python docs/examples/sinusoid.py maml --steps 70000 --seed 0
"""

import argparse
import math

import torch
from torch import nn

import gradhomog
from gradhomog import TaskBatch


def sinusoids(tasks, points, generator):
    """Return x and a sin(x − p), `[tasks, points, 1]`: a uniform in [0.1, 5], p in [0, π], x in [−5, 5]."""

    def uniform(low, high, *size):
        return low + (high - low) * torch.rand(*size, generator=generator)

    amplitude, phase = uniform(0.1, 5.0, tasks, 1, 1), uniform(0.0, math.pi, tasks, 1, 1)
    x = uniform(-5.0, 5.0, tasks, points, 1)
    return x, amplitude * torch.sin(x - phase)


def batch(tasks, shots, queries, generator):
    x, y = sinusoids(tasks, shots + queries, generator)
    return TaskBatch(x[:, :shots], y[:, :shots], x[:, shots:], y[:, shots:])


def network():
    return nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU()), nn.Linear(40, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("learner", nargs="?", default="maml")
    parser.add_argument("--homogenizers", default="none")
    parser.add_argument("--steps", type=int, default=70_000)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test-tasks", type=int, default=600)
    parser.add_argument("--compile", action="store_true", help="faster if there are several thousand steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    encoder, head = network()
    execution = {"engine": "vmap", "compile": True} if options.compile else {}
    learner = gradhomog.learner(
        options.learner, encoder, head, homogenizers=options.homogenizers, inner_lr=0.01, inner_steps=1, **execution
    )
    outer = torch.optim.Adam(learner.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(options.seed)
    losses = []
    for step in range(1, options.steps + 1):
        report = learner.step(batch(25, options.shots, options.shots, generator), outer)
        losses.append(float(report.losses.mean()))
        if step % 5000 == 0:
            print(f"step {step}: query loss {sum(losses[-500:]) / 500:.3f}", flush=True)
    test = batch(options.test_tasks, options.shots, 100, torch.Generator().manual_seed(12345))
    print(f"inner steps   mean squared error ± 95 % of {options.test_tasks} tasks")
    for inner_steps in (0, 1, 2, 3, 5, 10):
        learner.test_steps = inner_steps
        scores = torch.tensor(learner.evaluate(test).scores)
        print(f"{inner_steps:11}   {scores.mean():.3f} ± {1.96 * scores.std() / len(scores) ** 0.5:.3f}")


if __name__ == "__main__":
    main()
