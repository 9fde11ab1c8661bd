"""Sharp-MAML: MAML with sharpness-aware minimization in the outer loop, the inner loop, or both."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, Task, TaskBatch, TaskRows, hookimpl
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._option_types import NonNegative
from gradhomog_adapters.few_shot import Support
from gradhomog_adapters.maml import MAML, MAMLOptions


class SharpMAML(MAML):
    """MAML that searches for flat minima: rows are gradients at θ + ε, where ε is an ascent step from θ.

    outer:  ε = ρ m/‖m‖,  m = 1/N Σ_i ∇_θ L_Q(θ_i^K(θ));  row_i = ∇_θ L_Q(θ_i^K(θ)) at θ + ε
    inner:  ε_i = ρ' ∇L_S(θ_i^k)/‖∇L_S(θ_i^k)‖;  θ_i^{k+1} = θ_i^k − α ∇L_S(θ_i^k + ε_i)

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        outer_radius: ρ ≥ 0 of the outer loop; 0 disables it.
        inner_radius: ρ' ≥ 0 of the inner loop; 0 disables it. Used in training only.
        inner, inner_lr, inner_steps, test_steps, first_order, adapt: see `MAML`.
        engine, compile, autocast, norm, recompute: see `Execution`.

    ε and ε_i are constants in derivatives, as in sharpness-aware minimization. m is the mean of the rows before
    homogenization, over all trained parameters and all tasks with a finite row. Losses, outputs and features are those
    at θ + ε. Meta-test is that of MAML. With both radii 0 it equals MAML. Cost: `outer_radius` doubles the rows,
    `inner_radius` doubles the inner gradients.

    Source: Abbas et al. 2022, arXiv 2206.03996, algorithm 1 (Sharp-MAML, of which one radius alone is Sharp-MAML_up and
    Sharp-MAML_low); Foret et al. 2021, arXiv 2010.01412.

    Deviation: no constant is added to a norm; if the norm is zero, ε is zero.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = SharpMAML(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1), outer_radius=0.05, inner_steps=1)
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> report = learner.step(TaskBatch(x, x.sin(), x, x.sin()), torch.optim.Adam(learner.parameters(), lr=1e-3))
    >>> tuple(report.losses.shape)
    (3,)
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        outer_radius: NonNegative = 0.05,
        inner_radius: NonNegative = 0.0,
        **options: Unpack[MAMLOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        self.outer_radius, self.inner_radius = outer_radius, inner_radius
        self._epsilon: dict[str, Tensor] = {}

    def rows(self, batch: TaskBatch | Sequence[Task]) -> TaskRows:
        found = super().rows(batch)
        if not self.outer_radius:
            return found
        # A task that is not finite is excluded from ε, so that the nonfinite policy applies to this task alone.
        finite = torch.stack([rows.flatten(1).isfinite().all(1) for rows in found.jacobian.values()]).all(0).tolist()
        kept = [task for task, is_finite in enumerate(finite) if is_finite]
        if not kept:
            return found
        # Without the index a GPU copies nothing from the CPU, which would wait for it.
        mean = {n: (rows if all(finite) else rows[kept]).mean(0) for n, rows in found.jacobian.items()}
        self._epsilon = ascent_step(mean, self.outer_radius)
        try:
            return super().rows(batch)
        finally:
            self._epsilon = {}

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        with super().mode(training):
            if self._epsilon:
                at = self.live_parameters
                self.live_parameters = {n: t.detach() + self._epsilon[n] for n, t in at.items()}
            yield

    def support_loss(self, parameters: Parameters, support: Support, k: int, features: Tensor | None) -> Tensor:
        if not self.inner_radius or support.order == "none":
            return super().support_loss(parameters, support, k, features)
        adapted = {name: parameters[name] for name in self.adapted if name in parameters}

        def loss(at: Mapping[str, Tensor]) -> Tensor:
            return support.loss({**parameters, **at}, features)

        epsilon = ascent_step(support.differentiate(loss, adapted, False), self.inner_radius)
        return loss({name: tensor + epsilon[name] for name, tensor in adapted.items()})


def ascent_step(gradient: Mapping[str, Tensor], radius: float) -> dict[str, Tensor]:
    """Return ρ g/‖g‖, or zero if g is zero.

    >>> ascent_step({"a": torch.tensor([3.0, 4.0])}, radius=1.0)
    {'a': tensor([0.6000, 0.8000])}
    """
    # Divide by the largest entry first, because squares of small gradients underflow.
    largest = torch.stack([tensor.abs().max() for tensor in gradient.values()]).max()
    largest = torch.where(largest == 0, torch.ones_like(largest), largest)
    unit = {name: tensor / largest for name, tensor in gradient.items()}
    length = torch.stack([tensor.square().sum() for tensor in unit.values()]).sum().sqrt()
    length = torch.where(length == 0, torch.ones_like(length), length)
    return {name: radius * tensor / length for name, tensor in unit.items()}


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=SharpMAML,
        summary="MAML with gradients at the worst nearby point, for flat minima",
        reference="Abbas et al. 2022, arXiv 2206.03996",
    )
