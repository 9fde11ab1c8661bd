"""TorchOpt's implicit differentiation: a prior of ridge regressions, one implicit gradient per task, homogenized.

Task i solves w_i(φ, λ) = argmin_w ½ mean (X w − y)² + ½ Σ_j λ_j (w_j − φ_j)² on its support set. Its row is the
gradient of the query loss w.r.t. φ and log λ, which TorchOpt obtains from the optimality condition at w_i.
"""

import numpy as np
import torch
import torchopt
from torch import nn

import gradhomog

FEATURES = 5


def features(x):
    """Return powers `[points, FEATURES]` of inputs `[points, 1]` in [-5, 5]."""
    return torch.cat([(x / 5) ** power for power in range(FEATURES)], dim=1)


# Set `maxiter`: the default is 10 * sum(shape), which is 0 for a parameter of shape ().
class Ridge(torchopt.nn.ImplicitMetaGradientModule, linear_solve=torchopt.linear_solve.solve_cg(maxiter=30, rtol=1e-8)):
    """The regression of one task: its parameters are the solution, tensors passed to it are meta-parameters."""

    def __init__(self, mean, log_strength):
        super().__init__()
        self.mean, self.log_strength = mean, log_strength
        self.weights = nn.Parameter(mean.detach().clone())

    def objective(self, x, y):
        error = features(x) @ self.weights - y
        penalty = self.log_strength.exp() * (self.weights - self.mean).square()
        return 0.5 * error.square().mean() + 0.5 * penalty.sum()

    def solve(self, x, y):
        tolerances = {"tolerance_grad": 1e-9, "tolerance_change": 1e-15}
        optimizer = torch.optim.LBFGS([self.weights], max_iter=50, line_search_fn="strong_wolfe", **tolerances)

        def closure():
            optimizer.zero_grad()
            loss = self.objective(x, y)
            loss.backward(inputs=[self.weights])
            return loss

        with torch.enable_grad():
            optimizer.step(closure)
        return self


def query_loss(prior, task):
    """Return the query loss of the solution, a differentiable function of the prior."""
    model = Ridge(**prior)
    model.solve(task.support_x, task.support_y[:, 0])
    return 0.5 * (features(task.query_x) @ model.weights - task.query_y[:, 0]).square().mean()


def gradients(prior, tasks):
    """Return one implicit gradient per task, by name `[tasks, FEATURES]`, and the query losses `[tasks]`."""
    losses, rows = [], []
    for task in tasks:
        loss = query_loss(prior, task)
        rows.append(torch.autograd.grad(loss, list(prior.values())))
        losses.append(loss.detach())
    return dict(zip(prior, map(torch.stack, zip(*rows, strict=True)), strict=True)), torch.stack(losses)


def train(prior, batches, pipe):
    outer = torch.optim.Adam(prior.values(), lr=0.1)
    for batch in batches:
        rows, losses = gradients(prior, batch)
        direction = pipe.combine(rows, losses=losses, domains=[task.domain for task in batch])
        for name, parameter in prior.items():
            parameter.grad = direction[name]
        outer.step()


def main():
    rng = np.random.default_rng(0)
    domains = [gradhomog.domain(f"functions:{name}") for name in ("line", "quadratic", "exponential")]
    shape = {"ways": 1, "shots": 5, "queries": 10}
    unseen = [domain.sample("test", rng, **shape) for domain in domains for _ in range(10)]
    prior = {name: torch.zeros(FEATURES, requires_grad=True) for name in ("mean", "log_strength")}

    pipe = gradhomog.pipeline("upgrad")
    before = np.mean([query_loss(prior, task).item() for task in unseen])
    train(prior, ([domain.sample("train", rng, **shape) for domain in domains] for _ in range(30)), pipe)
    after = np.mean([query_loss(prior, task).item() for task in unseen])
    print(f"query loss on unseen functions: {before:.2f} before, {after:.2f} after")


if __name__ == "__main__":
    main()
