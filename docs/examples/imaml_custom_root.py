"""iMAML with TorchOpt's implicit differentiation, `custom_root`, instead of the learner's conjugate gradients.

The rows agree if I + H/λ is positive definite. Tasks run one after the other.

Run: python docs/examples/imaml_custom_root.py
"""

import warnings

import torch
import torchopt
from torch import Tensor, nn

from gradhomog import TaskBatch
from gradhomog_adapters.imaml import IMAML

warnings.filterwarnings("ignore", message=".*functorch", category=FutureWarning)  # TorchOpt calls functorch


class CustomRootIMAML(IMAML):
    """iMAML that differentiates the solution θ*(θ) by its optimality condition ∇L_S(θ*) + λ(θ* − θ) = 0."""

    def row(self, parameters, support, query_row):
        solution = self.adapt(parameters, support)
        names, adapted = list(parameters), [name for name in self.adapted if name in parameters]

        def optimality(root: tuple[Tensor, ...], initial_parameters: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            fixed, point = dict(zip(names, initial_parameters, strict=True)), dict(zip(adapted, root, strict=True))
            gradients = torch.func.grad(lambda at: support.loss({**fixed, **at}))(point)
            return tuple(gradients[name] + self.proximal * (point[name] - fixed[name]) for name in adapted)

        # Without `maxiter`, `solve_cg` makes no iteration for a parameter without dimensions.
        solve = torchopt.linear_solve.solve_cg(maxiter=self.cg_steps, ridge=self.proximal * self.damping, rtol=1e-15)

        @torchopt.diff.implicit.custom_root(optimality, argnums=1, solve=solve)
        def solve_inner(initial: None, initial_parameters: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(solution[name] for name in adapted)

        def evaluation_points(at, support):
            root = solve_inner(None, tuple(at[name] for name in names))
            return [{**at, **dict(zip(adapted, root, strict=True))}]

        return query_row(evaluation_points, parameters)


def rows(learner_class: type[IMAML]) -> dict[str, Tensor]:
    """Return the rows of three sinusoid tasks."""
    torch.manual_seed(0)
    encoder, head = nn.Sequential(nn.Linear(1, 16), nn.Tanh()).double(), nn.Linear(16, 1).double()
    learner = learner_class(encoder, head, proximal=20.0, inner_lr=0.02, inner_steps=60, cg_steps=20, engine="loop")
    x, shift = torch.linspace(-2, 2, 10, dtype=torch.float64)[:, None].repeat(3, 1, 1), torch.arange(3)[:, None, None]
    y = torch.sin(x + shift)
    return learner.rows(TaskBatch(x[:, ::2], y[:, ::2], x[:, 1::2], y[:, 1::2])).jacobian


if __name__ == "__main__":
    ours, theirs = rows(IMAML), rows(CustomRootIMAML)
    for name, row in ours.items():
        print(f"{name}: largest difference {float((row - theirs[name]).abs().max()):.1e}")
