"""Reptile: move the initialisation towards where the inner loop of each task ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, Unpack

import torch
import torchopt
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, Task, TaskBatch, TaskKey, TaskRow, hookimpl
from gradhomog_adapters._inner_optimizer import Inner, check_steps, resolve
from gradhomog_adapters._network.functional import Parameters, choose
from gradhomog_adapters._network.norm import Statistics
from gradhomog_adapters._reptile.kept_state import KeptState
from gradhomog_adapters._reptile.minibatches import Minibatches
from gradhomog_adapters._rows.gradients import constants
from gradhomog_adapters._rows.sets import QueryRow
from gradhomog_adapters.execution import Execution, ExecutionOptions
from gradhomog_adapters.few_shot import FewShotLearner, Support

On = Literal["support", "all"]
Tasks = TypeVar("Tasks", Task, TaskBatch)


class Reptile(FewShotLearner):
    """Learns an initialisation θ that is near each task's adapted parameters.

    θ_i⁰ = θ,  θ_i^{k+1} = θ_i^k − α ∇L(θ_i^k; minibatch k)  (or any other TorchOpt transformation)
    row_i = (θ − θ_i^K) / (α K), the mean of the K gradients for gradient descent; 0 for K = 0

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner: as of `MAML`: an optimizer by name, a TorchOpt transformation or a function that makes one. As published:
            `torchopt.adam(lr=1e-3, betas=(0.0, 0.999))` with `keep_state`.
        inner_lr: α > 0, used when `inner` is a name.
        inner_steps: K ≥ 0 while training.
        test_steps: K at meta-test; as `inner_steps` by default (published: 50).
        scale: what takes the place of α in the row, > 0; `inner_lr` by default. It must be given where `inner` is an
            object, whose rate is not known. Under Adam and its kin a row is in units of the nominal rate, and its
            entries lie about within ±1. `scale=1/inner_steps` gives plain displacements: an outer SGD of rate ε is then
            the published θ + ε · mean(θ_i^K − θ).
        adapt: glob pattern, or several, over the parameter names that the inner loop changes. The rows of others are
            zero: nothing moves them.
        on: what inner steps run on: `"support"`, or `"all"`, the support and query set together, as published
            (training tasks need no query set there). The reported loss is then one of training. At meta-test always
            the support set.
        inner_batch: examples in a minibatch, ≥ 1 (published: 10); all by default. Shuffled, cut and shuffled again; the
            same positions for all tasks of a meta-step, so both engines do the same. At meta-test too.
        seed: ≥ 0, of a generator of minibatches of the learner's own.
        keep_state: the inner optimizer goes on from task to task, as published, in place of a fresh state for each.
            Rows then depend on the order of tasks and on the steps before. One task after the other; saved with the
            learner; advanced by `step`, not by `rows`. A task at meta-test begins with the state that training has
            reached, and leaves it as it is.
        execution, engine, compile, autocast, norm, recompute: see `Execution`. Inner steps normalize with each
            minibatch's own statistics, under `norm="support"` too. There is no graph to recompute.

    The row is no derivative of the query loss. Query loss, outputs, features and their gradients, which some
    homogenizers need, come from one more forward pass at θ_i^K, whose backward pass ends at the features: a `transform`
    learns, but changes no row of this learner. In low precision, a row loses the digits that θ and θ_i^K share.

    Cost per task: K + 1 forward and K backward passes, and no graph of more than one step.

    Source: Nichol et al. 2018, arXiv 1803.02999, algorithm 2 (batched), and the gradient (θ − θ_i^K)/α of section 3,
    which is given to any outer optimizer.

    Deviations: (1) rows are divided by K too, so that they have a gradient's size, whatever K is; (2) no linear decay
    of the outer rate, which is the outer optimizer's; (3) the authors' code draws other minibatches for each task, and
    smaller ones at meta-test; (4) there, a task that ends in NaN spoils the kept state; here one of which
    anything is not finite leaves no trace.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = Reptile(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1), inner_steps=3, inner_batch=2)
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> report = learner.step(TaskBatch(x, torch.sin(x), x, torch.sin(x)), torch.optim.SGD(learner.parameters(), 0.1))
    >>> tuple(report.cosines.shape)
    (3, 3)
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        inner: Inner = "sgd",
        inner_lr: float = 0.01,
        inner_steps: int = 5,
        test_steps: int | None = None,
        scale: float | None = None,
        adapt: str | Sequence[str] = "*",
        on: On = "support",
        inner_batch: int | None = None,
        seed: int = 0,
        keep_state: bool = False,
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss=loss, execution=execution, **keywords)
        self.inner_steps, self.test_steps = check_steps(inner_steps, test_steps)
        self.inner = resolve(inner, inner_lr)
        self.scale = _scale(scale, inner, inner_lr)
        self.adapted = choose(list(self.network.parameters()), adapt, "adapt")
        if on not in ("support", "all"):
            raise OptionError(f"`on` must be 'support' or 'all'; got {on!r}.")
        self.on = on
        self._minibatches = None if inner_batch is None else Minibatches(inner_batch, seed)
        if self._minibatches is not None:
            self.learn("minibatches", self._minibatches)
        self._kept: KeptState | None = None
        if keep_state:
            self.execution.check_one_after_the_other("`keep_state` takes")
            self.execution = replace(self.execution, engine="loop")
            start = {name: self.network.parameters()[name] for name in self.adapted}
            self._kept = KeptState(self.inner, start)
            self.learn("inner_state", self._kept)
        self._positions: Tensor | None = None
        self._support = 0

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        return self.descend(parameters, support)[0]

    def descend(self, parameters: Parameters, support: Support) -> tuple[dict[str, Tensor], Any]:
        """All parameters after the inner loop, constants, and the state of the inner optimizer."""
        training = support.order != "none"
        support, inner = replace(support, order="none"), self.inner()
        held = constants(parameters)
        theta = {name: held[name] for name in self.adapted if name in held}
        state = inner.init(theta)
        if self._kept is not None:
            state = self._kept.running(theta) if training else self._kept.committed(theta)
        for k, examples in enumerate(self._examples(support, training) if theta else ()):
            if k and examples is not support:  # other inputs: what homogenizers draw for them is drawn anew
                support.begin("support")
            gradients = support.gradient(lambda at, on=examples: on.loss({**held, **at}), theta)  # type: ignore[misc]
            updates, state = inner.update(gradients, state, params=theta, inplace=False)
            theta = torchopt.apply_updates(theta, updates, inplace=False)
        return {**held, **theta}, state

    def row(self, parameters: Parameters, support: Support, query_row: QueryRow) -> TaskRow:
        moved, state = self.descend(parameters, support)
        # By no parameter: the row is no derivative, so the backward pass ends at the query features.
        found = query_row(lambda at, _: [moved], {})
        length = self.scale * max(self.inner_steps, 1)
        displacement = {n: (parameters[n].detach() - moved[n]) / length for n in self.adapted if n in parameters}
        if self._kept is not None:
            self._kept.after_task(state, [found.loss, *displacement.values()])
        found.gradients = displacement
        return found

    # -- the examples of inner steps ---------------------------------------------------------------------------------

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        if self._kept is not None:
            self._kept.restart()
        return super().batch_row(self._drawn(batch, 1))

    def task_row(self, task: Task, key: TaskKey) -> TaskRow:
        return super().task_row(self._drawn(task, 0), key)

    def on_step_end(self) -> None:
        if self._minibatches is not None:
            self._minibatches.on_step_end()
        if self._kept is not None:
            self._kept.after_step()

    def support_statistics(self, point: Parameters, support: Support) -> Statistics:
        if support.order != "none":  # while training `on="all"` puts the query set behind the support set
            support = replace(support, x=support.x[: self._support])
        return super().support_statistics(point, support)

    def _drawn(self, tasks: Tasks, dim: int) -> Tasks:
        """Tasks with all examples of inner steps as their support set; draws the step's minibatches, as nothing can be
        drawn within `vmap`."""
        self._support = tasks.support_x.shape[dim]
        if self.on == "all":
            tasks = replace(
                tasks, support_x=torch.cat([tasks.support_x, tasks.query_x], dim),
                support_y=torch.cat([tasks.support_y, tasks.query_y], dim),
            )  # fmt: skip
        if self._minibatches is not None:
            drawn = self._minibatches.while_training(tasks.support_x.shape[dim], self.inner_steps)
            self._positions = None if drawn is None else drawn.to(tasks.support_x.device)
        return tasks

    def _examples(self, support: Support, training: bool) -> Iterable[Support]:
        """The examples of each inner step."""
        positions = self._positions if training else None
        if self._minibatches is not None and not training:
            positions = self._minibatches.at_meta_test(len(support.x), support.steps)
        if positions is None:
            return [support] * support.steps
        return (replace(support, x=support.x[chosen], y=support.y[chosen]) for chosen in positions)


def _scale(scale: float | None, inner: Inner, inner_lr: float) -> float:
    if scale is None and not isinstance(inner, str):
        raise OptionError(
            "`scale` must be given where `inner` is an object: rows are displacements divided by the inner rate, which "
            "it does not tell. Give the rate that it was made with."
        )
    found = inner_lr if scale is None else scale
    if not 0 < found < math.inf:
        raise OptionError(f"`scale` must be positive and finite; got {scale!r}.")
    return found


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=Reptile,
        summary="moves the initialisation towards the parameters that each task is adapted to",
        reference="Nichol et al. 2018, arXiv 1803.02999",
    )
