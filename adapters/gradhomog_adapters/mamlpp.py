"""MAML++: MAML with learned rates, a multi-step loss, normalization per step, and annealing."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog import LearnerSpec, OptionError, Ranks, StepReport, Task, TaskBatch, hookimpl, to_device
from gradhomog_adapters._inner_optimizer import Inner, make_inner_optimizer
from gradhomog_adapters._network import Network, Parameters, StepCounter, buffer_module, parameter_module
from gradhomog_adapters._network_mode import Norm, Statistics, norm_policy
from gradhomog_adapters._option_types import CountOrZero, NonNegative, Positive
from gradhomog_adapters.execution import ExecutionOptionsExceptNorm
from gradhomog_adapters.few_shot import Query, Support
from gradhomog_adapters.maml import MAML, Tensors


def rates(names: Sequence[str], inner_steps: int, start: float) -> nn.Module:
    """Parameters `<name>` `[inner_steps]`, initially `start`, in float64 until converted to the network's dtype."""
    return parameter_module({name: torch.full((max(inner_steps, 1),), start, dtype=torch.float64) for name in names})


def entry_of_step(entries: Tensor, k: int) -> Tensor:
    """The entry of step k of a parameter `[inner_steps, ...]`; steps beyond the last use its entry."""
    return entries[max(min(k, len(entries) - 1), 0)]


def batch_norm_layers(network: Network) -> dict[str, _BatchNorm]:
    """Batch normalization layers, under each of their names."""
    return {name: module for name, module in network.modules().items() if isinstance(module, _BatchNorm)}


def affine_parameters(network: Network) -> dict[str, Tensor]:
    """The trainable scales and shifts of batch normalization."""
    affine_ids = {id(p) for layer in batch_norm_layers(network).values() for p in layer.parameters(recurse=False)}
    return {name: parameter for name, parameter in network.parameters().items() if id(parameter) in affine_ids}


def statistics(network: Network, slots: int) -> nn.Module:
    """Buffers `<name>` `[slots, ...]`: `slots` copies of the layers' running statistics.

    Raises:
        OptionError: a layer has no running statistics.
    """
    found: dict[str, Tensor] = {}
    for name, layer in batch_norm_layers(network).items():
        if layer.running_mean is None:
            raise OptionError(
                f"`norm` 'running' needs layers with running statistics; `{name}`, a {type(layer).__name__}, has none "
                "(track_running_stats=False). Use 'batch' or 'support'."
            )
        for part, buffer in layer.named_buffers(recurse=False):
            found[f"{name}.{part}"] = torch.stack([buffer] * slots)
    return buffer_module(found)


# Minimum weight of a step before the last, in units of 1/K, until the annealing ends (the authors' code).
MIN_SHARE = 0.03


def loss_weights(inner_steps: int, done: int, until: int) -> list[float]:
    """Weights v_0 … v_{K−1} of L = Σ_k v_k L_Q(θ^{k+1}) after `done` meta-steps; their sum is one.

    With e = done/until: v_k = max(1 − e, 0.03)/K for k < K − 1, and the last weight is the rest; 1 if done ≥ until.

    Source: Antoniou et al. 2019, arXiv 1810.09502, section 4 (multi-step loss). The constants are those of the authors'
    code, in which e changes only between epochs.
    """
    if inner_steps == 0:
        return []
    if done >= until:
        return [0.0] * (inner_steps - 1) + [1.0]
    early = max(1 - done / until, MIN_SHARE) / inner_steps
    return [early] * (inner_steps - 1) + [1 - (inner_steps - 1) * early]


def _cosine_rate(initial: float, final: float, steps: int, done: Any) -> float:
    share = min(float(done) / steps, 1.0)
    return final + (initial - final) * (1 + math.cos(math.pi * share)) / 2


def cosine(initial: float, final: float, steps: int) -> Callable[[Any], float]:
    """Cosine schedule: final + (initial − final)(1 + cos(π · done/steps))/2 after `done` steps, then `final`.

    Also for TorchOpt's optimizers: `torchopt.Adam(parameters, lr=cosine(1e-3, 1e-5, 50_000))`.

    Raises:
        OptionError: `steps` is not positive.

    >>> rate = cosine(1.0, 0.0, 100)
    >>> [round(rate(done), 4) for done in (0, 50, 100, 200)]
    [1.0, 0.5, 0.0, 0.0]
    """
    if steps < 1:
        raise OptionError(f"`steps` must be at least 1; got {steps!r}.")
    return partial(_cosine_rate, initial, final, steps)


@contextmanager
def anneal_rate(outer: Any, done: int, steps: int, final: float) -> Iterator[None]:
    """Context for one step, with the optimizer's rates set by the cosine schedule; restored if the step raises.

    The initial rate of each group is its `initial_lr`, stored in the group and saved with it, as in PyTorch's
    schedulers.

    Raises:
        OptionError: `outer` is not an optimizer of PyTorch, whose rate could be set, or its rate is below `final`.
    """
    if not isinstance(outer, torch.optim.Optimizer):
        kind = f"{type(outer).__module__}.{type(outer).__qualname__}"
        raise OptionError(
            f"`anneal_steps` requires an optimizer of torch.optim; got a {kind}, whose rate cannot be set. For one of "
            "TorchOpt pass a schedule, lr=gradhomog_adapters.mamlpp.cosine(1e-3, 1e-5, 50_000), and "
            "leave `anneal_steps` at 0."
        )
    before = [(group, group["lr"], "initial_lr" in group) for group in outer.param_groups]
    try:
        for group in outer.param_groups:
            rate = group["lr"]
            initial = float(group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate))
            if final > initial:
                raise OptionError(
                    f"`final_outer_lr` must not exceed the outer optimizer's rate, {initial:g}; got {final:g}."
                )
            annealed = _cosine_rate(initial, final, steps, done)
            # A new tensor, so that the old one can be restored.
            group["lr"] = torch.full_like(rate, annealed) if isinstance(rate, Tensor) else annealed
        yield
    except BaseException:
        for group, rate, annealing in before:  # only these: SOAP keeps its number of steps in the group
            group["lr"] = rate
            if not annealing:
                group.pop("initial_lr", None)
        raise


class MAMLPP(MAML):
    """MAML with five parts for stable training, each of which can be disabled; without them it is exactly MAML.

        θ⁰ = θ,  θ_l^{k+1} = θ_l^k − α_{l,k} ∇_l L_S(θ^k; γ_k, β_k)
        row = ∇ Σ_k v_k L_Q(θ^{k+1}; γ_k, β_k)

    Rows are derivatives w.r.t. θ, the rates α_{l,k}, and the scales and shifts γ_k, β_k of batch normalization.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner, inner_lr: the inner optimizer and its rate, see `MAML`. With `learn_rates`, `inner` must be a name, and
            `inner_lr` is the initial value of all α_{l,k} (paper: 0.1 for Omniglot, 0.01 for miniImageNet).
        inner_steps: K ≥ 0 in training.
        test_steps: steps at meta-test; default: K. Steps beyond K use the rates and normalization of the last.
        adapt: glob pattern, or several, over the parameters that the inner loop changes.
        learn_rates: learn a rate α_{l,k} for each adapted tensor l and step k: parameters `learner.rates.<name>` `[K]`.
        step_norm: learn γ_k, β_k of every batch normalization layer for each step k, in the outer loop only: parameters
            `learner.norm.<name>` `[K, channels]`, which replace those of the layer. No effect on networks without batch
            normalization.
        multi_step_steps: number of meta-steps in which the loss changes from the mean over all inner steps, v_k = 1/K,
            to the loss after the last one: v_k = max(1 − e, 0.03)/K for k < K − 1, where e is the fraction of these
            meta-steps that are completed; the last weight makes the sum 1. After these meta-steps only the loss after
            the last inner step is used. 0: use only this loss from the first meta-step. Paper: 10 epochs of 500 steps
            (Omniglot) or 15 (miniImageNet) of 100 or 150.
        first_order_steps: number of meta-steps without second derivatives: inner gradients are constants. A row still
            contains the derivatives w.r.t. rates, scales and shifts, and the first-order ones (FOMAML) w.r.t. θ.
            Paper: 50 epochs, 25 000; the authors' configurations: none.
        anneal_steps: number of meta-steps in which the rate of an outer optimizer of `torch.optim` decreases on a
            cosine from its own rate, stored in its groups as `initial_lr`, to `final_outer_lr`, and then stays there.
            0: no annealing. Paper: all steps, 50 000 (Omniglot) to 75 000. For optimizers of TorchOpt see `cosine`.
        final_outer_lr: ≥ 0. The authors' configurations: 1e-5 for Omniglot.
        norm: `"batch"`, `"support"`, `"frozen"`, see `Execution`; or `"running"`: `"batch"` in training, and at
            meta-test the statistics of each step, averaged in training (inductive: queries do not depend on each
            other). They are recorded in `step`, without homogenizers, by one more first-order inner loop per task:
            buffers `learner.statistics.<name>` `[K + 1, ...]`, of each inner step and of the query set after the last.
        engine, compile, autocast, recompute: see `Execution`.

    The number of completed steps is state, `learner.count`: a loaded learner continues its schedules. The losses
    of rows and reports are the multi-step losses Σ v_k L_Q; outputs and features are those after the last step, and
    gradients w.r.t. features are sums over the passes. For an ensemble of the best checkpoints see
    `gradhomog.Ensemble`. The network alone (`learner.encoder`) keeps its original scales and shifts. Rows are exact,
    except in `first_order_steps`. Cost: that of MAML, and one more query pass per inner step during
    `multi_step_steps`.

    Raises:
        OptionError: an option is invalid; or, in `step` with `anneal_steps`, the rate of the outer optimizer cannot be
            set or is below `final_outer_lr`.

    Source: Antoniou et al. 2019, arXiv 1810.09502, section 4.

    Deviations from the paper: schedules count meta-steps, not epochs, and the multi-step loss changes in every one.
    From the authors' code (HowToTrainYourMAMLPytorch): (1) rates start at `inner_lr`: theirs reads a different option
    than its configurations set, and starts at 0.1; (2) K rates per tensor: theirs has K + 1, the last never used; (3)
    the network's running statistics are never modified: theirs saves them before an evaluation by a copy that shares
    their memory, so that restoring them has no effect; (4) theirs records statistics per step and never uses them:
    `"running"` uses them, and keeps those of the query set after the last step separate, because its parameters
    differ; (5) with `anneal_steps` the rate decreases: in their configuration for miniImageNet the initial and final
    rates are equal; (6) the paper's first-order phase is an option: their configurations disable it; (7) `test_steps`
    has an effect: theirs always predicts after as many steps as in training; (8) meta-gradients are not clamped at ±10,
    as theirs are for miniImageNet.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> encoder = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
    >>> learner = MAMLPP(encoder, torch.nn.Linear(8, 1), inner_steps=2, multi_step_steps=100)
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> report = learner.step(TaskBatch(x, x.sin(), x, x.sin()), torch.optim.Adam(learner.parameters(), lr=1e-3))
    >>> [name for name in learner.named_parameters() if name.startswith("learner.")]  # doctest: +NORMALIZE_WHITESPACE
    ['learner.rates.encoder.0.weight', 'learner.rates.encoder.0.bias', 'learner.rates.head.weight',
     'learner.rates.head.bias', 'learner.norm.encoder.1.weight', 'learner.norm.encoder.1.bias']
    """

    _layers: Mapping[str, Tensor] = {}  # scales and shifts; the base class reads parameter names before it is set

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
        adapt: str | Sequence[str] = "*",
        learn_rates: bool = True,
        step_norm: bool = True,
        multi_step_steps: CountOrZero = 5000,
        first_order_steps: CountOrZero = 0,
        anneal_steps: CountOrZero = 0,
        final_outer_lr: NonNegative = 1e-5,
        norm: Norm | Literal["running"] = "batch",
        loss: Any = None,
        **keywords: Unpack[ExecutionOptionsExceptNorm],
    ) -> None:
        self._keeps_statistics = norm == "running"
        super().__init__(
            encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps,
            test_steps=test_steps, adapt=adapt, loss=loss,
            norm="batch" if norm == "running" else norm, **keywords,
        )  # fmt: skip
        self.multi_step_steps = multi_step_steps
        self.first_order_steps = first_order_steps
        self.anneal_steps = anneal_steps
        self.final_outer_lr = final_outer_lr
        self.learn_rates = learn_rates
        if learn_rates:
            if not isinstance(inner, str):
                raise OptionError(
                    f"`inner` must be a name if rates are learned; got {inner!r}. Use a name, or learn_rates=False."
                )
            self.inner = make_inner_optimizer(inner, 1.0)  # its updates are multiplied by the rates
        self._layers = affine_parameters(self.network) if step_norm else {}
        self.adapted = [name for name in self.adapted if name not in self._layers]
        if not self.adapted:
            raise OptionError(
                "`adapt` must match more than scales and shifts of batch normalization, which step_norm=True trains in "
                f"the outer loop; got {adapt!r}."
            )
        self._statistics_in_use: Mapping[str, Tensor] = {}
        self.register_module("count", StepCounter())
        if learn_rates:
            self.register_module("rates", rates(self.adapted, inner_steps, inner_lr))
        if self._layers:
            copies = {name: torch.stack([p] * max(inner_steps, 1)) for name, p in self._layers.items()}
            self.register_module("norm", parameter_module(copies))
        if self._keeps_statistics:
            self.register_module("statistics", statistics(self.network, inner_steps + 1))
        self._read_schedules()

    # -- θ^{k+1} = θ^k − α_k ∇L_S(θ^k; γ_k, β_k) ---------------------------------------------------------------------

    def support_loss(self, parameters: Parameters, support: Support, k: int, features: Tensor | None) -> Tensor:
        with_statistics = self.with_statistics(support, max(min(k, self.inner_steps - 1), 0))
        return with_statistics.loss(self.at_step(parameters, k))

    def scale_updates(self, updates: Tensors, theta: Parameters, fixed: Parameters, k: int) -> Tensors:
        if not self.learn_rates:
            return updates
        return {n: entry_of_step(self.extra_parameter(fixed, "rates", n), k) * update for n, update in updates.items()}

    def at_step(self, parameters: Parameters, k: int) -> Parameters:
        """Parameters with γ_k and β_k; frozen layers use their own."""
        live = [name for name, parameter in self._layers.items() if parameter.requires_grad]
        return {**parameters, **{n: entry_of_step(self.extra_parameter(parameters, "norm", n), k) for n in live}}

    def shared_features(self, start: Parameters, others: Parameters, support: Support) -> None:
        """Return None, because normalization differs between steps."""

    # -- Σ_k v_k L_Q(θ^{k+1}; γ_k, β_k) ------------------------------------------------------------------------------

    def evaluation_points(self, parameters: Parameters, support: Support) -> list[Parameters]:
        passes = self._passes
        points = zip(passes, self.inner_loop(parameters, support, passes), strict=True)
        return [self.at_step(point, k - 1) for k, point in points]

    def combine_losses(self, losses: Sequence[Tensor]) -> Tensor:
        return (torch.stack(list(losses)) * self._loss_weights).sum()

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        return self.at_step(super().adapt(parameters, support), support.steps - 1)

    def query(self, point: Parameters, support: Support, x: Tensor, y: Tensor | None, statistics: Statistics) -> Query:
        with_statistics = self.with_statistics(support, min(support.steps, self.inner_steps))
        return super().query(point, with_statistics, x, y, statistics)

    # -- schedules and recorded statistics ---------------------------------------------------------------------------

    def named_parameters(self) -> dict[str, nn.Parameter]:
        found = super().named_parameters()
        # Parameters per step replace those of their layer; a frozen layer has none.
        excluded = {name if name in found else f"learner.norm.{name}" for name in self._layers}
        return {name: parameter for name, parameter in found.items() if name not in excluded}

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        recorded = {} if training or not self._keeps_statistics else self._recorded_statistics()
        with super().mode(training), self._use_statistics(recorded, "frozen") if recorded else nullcontext():
            if training:
                self._read_schedules()
            yield

    @contextmanager
    def _use_statistics(self, statistics: Mapping[str, Tensor], norm: Literal["frozen", "running"]) -> Iterator[None]:
        """Context in which the running statistics of the network are these, used according to `norm_policy`."""
        self._statistics_in_use = statistics
        try:
            with norm_policy((self.encoder, self.head), norm):
                yield
        finally:
            self._statistics_in_use = {}

    def with_statistics(self, support: Support, slot: int) -> Support:
        """Support set with the running statistics of a slot; they are views, which layers update while recording."""
        if not self._statistics_in_use:
            return support
        return replace(support, buffers={**support.buffers, **{n: b[slot] for n, b in self._statistics_in_use.items()}})

    def step(
        self, batch: TaskBatch | Sequence[Task], outer: Any, group: Ranks | ProcessGroup | None = None,
        metric: torch.optim.Optimizer | None = None,
    ) -> StepReport:  # fmt: skip
        if self._keeps_statistics and (group if isinstance(group, Ranks) else Ranks("tasks", group)).size > 1:
            raise OptionError(
                "MAML++ with running statistics of batch normalization must be trained in one process, because every "
                "rank would average other tasks. Use another `norm`."
            )
        batch = batch if isinstance(batch, TaskBatch) else TaskBatch.stack(batch)
        annealing: AbstractContextManager[None] = nullcontext()
        if self.anneal_steps:  # else the number of steps is not read: a GPU would wait for it
            annealing = anneal_rate(outer, self.completed_steps, self.anneal_steps, self.final_outer_lr)
        with annealing:
            found = self._updated_statistics(batch) if self._keeps_statistics else {}
            report = super().step(batch, outer, group, metric)
        for name, buffer in found.items():
            self.extra_modules["statistics"].get_buffer(name).copy_(buffer)
        return report

    def _read_schedules(self) -> None:
        """Set the order of derivatives, and the passes of the query loss, for the current number of meta-steps.

        `_passes` are the numbers of inner steps after which the query loss is evaluated, increasing; the last one is K.
        `_loss_weights` `[passes]` are their weights; a tensor, so that compiled code reads new values. Read once per
        meta-step, because this synchronizes with the device.
        """
        done, like = self.completed_steps, next(iter(self.named_parameters().values()))
        self.order = "first" if done < self.first_order_steps else "second"
        weights = dict(enumerate(loss_weights(self.inner_steps, done, self.multi_step_steps), 1))
        weights = {k: weight for k, weight in weights.items() if weight} or {0: 1.0}
        self._passes = tuple(weights)
        self._loss_weights = to_device(torch.tensor(list(weights.values()), dtype=like.dtype), like.device)

    def _recorded_statistics(self) -> dict[str, Tensor]:
        return dict(self.extra_modules["statistics"].named_buffers())

    def _updated_statistics(self, batch: TaskBatch) -> dict[str, Tensor]:
        """Running statistics updated with those of a batch, after adaptation as at meta-test."""
        current = self._recorded_statistics()
        for task in batch:
            found = {name: buffer.clone() for name, buffer in current.items()}
            with super().mode(training=False), self._use_statistics(found, "running"):
                support = self.support_at_meta_test(task.support_x, task.support_y)
                self.outputs_at_meta_test(replace(support, steps=self.inner_steps), task.query_x)
            # A task with NaN is skipped, because the pipeline may drop it.
            if all(bool(torch.isfinite(buffer).all()) for buffer in found.values()):
                current = found
        return current


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MAMLPP,
        summary="MAML with learned rates, a multi-step loss, normalization per step, and annealing",
        reference="Antoniou et al. 2019, arXiv 1810.09502",
        traits={"exact_rows"},
    )
