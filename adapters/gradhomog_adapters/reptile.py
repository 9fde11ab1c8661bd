"""Reptile: move the initialization towards the adapted parameters of each task."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
import torchopt
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, TaskBatch, TaskRow, hookimpl, to_device
from gradhomog_adapters._gradients import autograd_gradient, detach_all
from gradhomog_adapters._inner_optimizer import Inner, InnerOptimizer, make_inner_optimizer
from gradhomog_adapters._network import Parameters, StepCounter, StepModule, match_names
from gradhomog_adapters._network_mode import Statistics
from gradhomog_adapters._option_types import Count, CountOrZero, Positive
from gradhomog_adapters.few_shot import FewShotLearner, LearnerOptions, QueryRow, Support, Tasks

# Odd, and by the golden ratio far from small multiples of 2³², so that adjacent seeds have different streams.
SEED_STRIDE = 2654435761


class Minibatches(StepCounter):
    """Positions `[steps, size]` of the examples of each inner step, a function of the seed and the meta-step number.

    Examples are shuffled, split into minibatches, and shuffled again when all are used; a minibatch can span two
    shuffles. All tasks of a meta-step use the same positions, so both engines do; the examples at a position differ.

    Args:
        size: examples in a minibatch, the option `inner_batch`; without it, more than any task has.
        seed: seed of a separate generator, the option `seed`.
    """

    def __init__(self, size: int, seed: int) -> None:
        super().__init__()
        self.size, self.seed = size, seed

    def positions(self, examples: int, steps: int, number: int) -> Tensor | None:
        """Positions for the meta-step of this number; None if a minibatch would contain all examples."""
        if self.size >= examples or not steps:
            return None
        generator = torch.Generator().manual_seed((self.seed * SEED_STRIDE + number) % 2**32)
        shuffles = -(-steps * self.size // examples)
        drawn = torch.cat([torch.randperm(examples, generator=generator) for _ in range(shuffles)])
        return drawn[: steps * self.size].view(steps, self.size)


class InnerOptimizerState(StepModule):
    """Two states of the inner optimizer, after the previous meta-step and after the previous task of this meta-step.

    The first is stored in buffers.

    Args:
        inner: the inner optimizer.
        parameters: the parameters that it adapts, by name.

    Raises:
        OptionError: the optimizer has further state in a closure.
    """

    def __init__(self, inner: InnerOptimizer, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        if inner.has_hidden_state:
            raise OptionError(
                "`keep_state` requires an inner optimizer without hidden state; TorchOpt's momentum with dampening "
                "stores which call was the first. Use one without dampening."
            )
        self.names = list(parameters)
        leaves, self._structure = torchopt.pytree.tree_flatten(inner().init(detach_all(parameters)))
        for index, leaf in enumerate(leaves):
            self.register_buffer(f"leaf{index}", leaf.clone())
        self._current: list[Tensor] = []

    def restart(self) -> None:
        """Start a meta-step with the state after the last one."""
        self._current = []

    def state(self, parameters: dict[str, Tensor], training: bool) -> Any:
        """State for the next task of a meta-step; at meta-test, that after the last meta-step.

        Raises:
            OptionError: the adapted parameters are not those of the state.
        """
        if list(parameters) != self.names:
            missing = ", ".join(sorted(set(self.names) ^ set(parameters)))
            raise OptionError(
                f"`keep_state` stores the state of all adapted parameters, but {missing} was frozen later. Freeze "
                "parameters before the learner is created."
            )
        leaves = self._current if training and self._current else self.buffers()
        return torchopt.pytree.tree_unflatten(self._structure, [leaf.clone() for leaf in leaves])

    def record_task(self, state: Any, checked: Sequence[Tensor]) -> None:
        """Store the state after a task, unless it or a tensor in `checked` is not finite."""
        before = self._current or list(self.buffers())
        after = [leaf.detach() for leaf in torchopt.pytree.tree_leaves(state)]
        finite = torch.stack([torch.isfinite(tensor).all() for tensor in (*after, *checked)]).all()
        self._current = [torch.where(finite, new, old) for new, old in zip(after, before, strict=True)]

    def on_step_end(self) -> None:
        """Store the state after a meta-step, for the next one."""
        for index, leaf in enumerate(self._current):
            setattr(self, f"leaf{index}", leaf)
        self._current = []


class Reptile(FewShotLearner):
    """Learns an initialization θ that is close to the adapted parameters of each task.

    θ_i⁰ = θ,  θ_i^{k+1} = θ_i^k − α ∇L(θ_i^k; minibatch k)  (or any other TorchOpt transformation)
    row_i = (θ − θ_i^K) / (α K), the mean of the K gradients for gradient descent; 0 for K = 0

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner: inner optimizer, see `MAML`: a name, a TorchOpt transformation or a function that returns one. Published:
            `torchopt.adam(lr=1e-3, betas=(0.0, 0.999))` with `keep_state`.
        inner_lr: α > 0, used if `inner` is a name.
        inner_steps: K ≥ 0 in training.
        test_steps: K at meta-test; default: `inner_steps` (published: 50).
        scale: > 0, replaces α in the row; default: `inner_lr`. Required if `inner` is an object, because its rate is
            not readable. With Adam and its variants, rows are in units of the nominal rate, with entries in about ±1.
            `scale=1/inner_steps` gives displacements: an outer SGD of rate ε is then the published
            θ + ε · mean(θ_i^K − θ).
        adapt: glob pattern, or several, over the names of the parameters that the inner loop changes. The rows of the
            others are zero, so they are not trained.
        on: examples of inner steps: `"support"`, or `"all"`, support and query set together, as published (training
            tasks need no query set there). With `"all"` the reported loss is a training loss. At meta-test always the
            support set.
        inner_batch: examples in a minibatch, ≥ 1 (published: 10); default: all. Examples are shuffled, split, and
            shuffled again, with the same positions for all tasks of a meta-step and for both engines. Also at
            meta-test.
        seed: ≥ 0, seed of the separate generator of minibatches.
        keep_state: the state of the inner optimizer continues from task to task, as published, instead of a new state
            for each. Rows then depend on the order of tasks and on earlier steps. Tasks run one after the other. The
            state is saved with the learner and updated by `step`, not by `rows`. At meta-test, a task starts with the
            state after training and does not change it.
        engine, compile, autocast, norm, recompute: see `Execution`. Inner steps normalize with the
            statistics of each minibatch, also under `norm="support"`. There is no graph to recompute.

    The row is not a derivative of the query loss. Query loss, outputs, features and their gradients, which some
    homogenizers need, come from one more forward pass at θ_i^K, whose backward pass ends at the features: a `transform`
    is updated, but does not change the rows of this learner. In low precision, a row loses the digits that θ and θ_i^K
    share.

    Cost per task: K + 1 forward and K backward passes, and the graph of one step.

    Source: Nichol et al. 2018, arXiv 1803.02999, algorithm 2 (batched), and the gradient (θ − θ_i^K)/α of section 3,
    for any outer optimizer.

    Deviations: (1) rows are also divided by K, so that they have the size of a gradient for any K; (2) no linear decay
    of the outer rate, which belongs to the outer optimizer; (3) the authors' code draws different minibatches for each
    task, and smaller ones at meta-test; (4) there, a task that ends in NaN corrupts the kept state; here, a task with
    any nonfinite result does not change it.

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
        inner_lr: Positive = 0.01,
        inner_steps: CountOrZero = 5,
        test_steps: CountOrZero | None = None,
        scale: Positive | None = None,
        adapt: str | Sequence[str] = "*",
        on: Literal["support", "all"] = "support",
        inner_batch: Count | None = None,
        seed: CountOrZero = 0,
        keep_state: bool = False,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        self.inner_steps, self.test_steps = inner_steps, test_steps
        self.inner = make_inner_optimizer(inner, inner_lr)
        if scale is None and not isinstance(inner, str):
            raise OptionError(
                "`scale` must be given if `inner` is an object: rows are displacements divided by the inner rate, "
                "which cannot be read from it. Set `scale` to its rate."
            )
        self.scale = inner_lr if scale is None else scale
        self.adapted = match_names(list(self.network.parameters()), adapt, "adapt")
        self.on = on
        self._minibatches = Minibatches(inner_batch or sys.maxsize, seed)
        if inner_batch is not None:
            self.register_module("minibatches", self._minibatches)
        self._inner_state: InnerOptimizerState | None = None
        if keep_state:
            self.execution.check_sequential("`keep_state` processes")
            self.execution = replace(self.execution, engine="loop")
            start = {name: self.network.parameters()[name] for name in self.adapted}
            self._inner_state = InnerOptimizerState(self.inner, start)
            self.register_module("inner_state", self._inner_state)
        self._support_size = 0

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        return self.run_inner_loop(parameters, support)[0]

    def run_inner_loop(self, parameters: Parameters, support: Support) -> tuple[dict[str, Tensor], Any]:
        """Return all parameters after the inner loop, detached, and the state of the inner optimizer."""
        training = support.order != "none"
        support, inner = replace(support, order="none"), self.inner()
        fixed = detach_all(parameters)
        theta = {name: fixed[name] for name in self.adapted if name in fixed}
        state = inner.init(theta)
        if self._inner_state is not None:
            state = self._inner_state.state(theta, training)
        for k, examples in enumerate(self._step_examples(support, training) if theta else ()):
            if k and examples is not support:  # new inputs: homogenizers draw new random numbers
                support.begin("support")
            gradients = support.gradient(lambda at, on=examples: on.loss({**fixed, **at}), theta)  # type: ignore[misc]
            updates, state = inner.update(gradients, state, params=theta, inplace=False)
            theta = torchopt.apply_updates(theta, updates, inplace=False)
        return {**fixed, **theta}, state

    def row(self, parameters: Parameters, support: Support, query_row: QueryRow) -> TaskRow:
        moved, state = self.run_inner_loop(parameters, support)
        # No parameters: the row is not a derivative, so the backward pass ends at the query features.
        found = query_row(lambda at, _: [moved], {})
        length = self.scale * max(self.inner_steps, 1)
        displacement = {n: (parameters[n].detach() - moved[n]) / length for n in self.adapted if n in parameters}
        if self._inner_state is not None:
            self._inner_state.record_task(state, [found.loss, *displacement.values()])
        if displacement and support.differentiate is autograd_gradient:  # values can be read
            changed = torch.stack([part.any() for part in displacement.values()]).tolist()  # one wait for a device
            pairs = zip(displacement.items(), changed, strict=True)
            found.gradients = {name: part if has_moved else None for (name, part), has_moved in pairs}
        else:
            found.gradients = displacement
        return found

    # -- the examples of inner steps ---------------------------------------------------------------------------------

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        if self._inner_state is not None:
            self._inner_state.restart()
        return super().batch_row(batch)

    def support_statistics(self, point: Parameters, support: Support) -> Statistics:
        if support.order != "none":  # in training `on="all"` appends the query set to the support set
            support = replace(support, x=support.x[: self._support_size])
        return super().support_statistics(point, support)

    def prepared(self, tasks: Tasks) -> Tasks:
        """Put all examples of inner steps into the support set, and draw the minibatches outside `vmap`."""
        dim = int(isinstance(tasks, TaskBatch))
        self._support_size = tasks.support_x.shape[dim]
        if self.on == "all":
            tasks = replace(
                tasks, support_x=torch.cat([tasks.support_x, tasks.query_x], dim),
                support_y=torch.cat([tasks.support_y, tasks.query_y], dim),
            )  # fmt: skip
        drawn = self._minibatches.positions(tasks.support_x.shape[dim], self.inner_steps, self._minibatches.step)
        self._positions = None if drawn is None else to_device(drawn, tasks.support_x.device)
        return tasks

    def _step_examples(self, support: Support, training: bool) -> Iterable[Support]:
        """Return the examples of each inner step."""
        # At meta-test those of the first meta-step, so that predictions do not depend on the number of training steps.
        positions = self._positions if training else self._minibatches.positions(len(support.x), support.steps, 0)
        if positions is None:
            return [support] * support.steps
        return (replace(support, x=support.x[chosen], y=support.y[chosen]) for chosen in positions)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=Reptile,
        summary="moves the initialization towards the adapted parameters of each task",
        reference="Nichol et al. 2018, arXiv 1803.02999",
    )
