"""Pipelines of homogenizers: creation from names, options and objects, and the homogenization of one step."""

from __future__ import annotations

import copy
import functools
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, overload

import torch
from annotated_types import Ge
from torch import Tensor, nn

from gradhomog import keyed
from gradhomog.errors import ConvergenceWarning, GradhomogError, OneTaskWarning, OptionError
from gradhomog.registry import Registry, expression, installed
from gradhomog.registry.options import check_state
from gradhomog.registry.specs import HomogenizerSpec
from gradhomog.rows import Direction, Jacobian
from gradhomog.step.absent import STEPS_OF_ONE_TASK, absent_keys, losses_of_absent, weigh_with_absent
from gradhomog.step.homogenizer import Homogenizer, Part
from gradhomog.step.member import Member, call_and_compare
from gradhomog.step.nonfinite import (
    Nonfinite,
    StageOutcome,
    drop_nonfinite,
    find_cause,
    find_overflow,
    require_finite_gramian,
    require_finite_inputs,
)
from gradhomog.step.reports import StageReport, StepReport
from gradhomog.step.requirements import Requirements
from gradhomog.step.step import Rows, Step, TaskKey, features_at_stages, make_step, seeded_generator, task_keys
from gradhomog.uncompiled import uncompiled

GROUP = "group "
"""Prefix of the name of a group of parameters in a saved state."""

Measurements = dict[str, Mapping[str, float | Sequence[float]]]


@dataclass(eq=False)
class PendingStep:
    """A computed step whose new homogenizer states are not assigned yet.

    Attributes:
        direction: the mean of the homogenized rows.
        rows: the homogenized rows.
        named: True if the tasks have names, None for a pipeline without state.
        idle: True if the step has one task, whose row no homogenizer changed.
    """

    pipe: Pipeline
    step: Step
    direction: Direction
    rows: Jacobian
    outcomes: Sequence[StageOutcome]
    measured: Measurements
    states: Sequence[tuple[Member, Mapping[str, Any]]]
    named: bool | None
    inspect: bool
    idle: bool

    def commit(self) -> None:
        """Assign the new state of every homogenizer, and increment the step count."""
        for member, state in self.states:
            member.homogenizer.assign_state(state)
        pipe = self.pipe
        pipe.steps, pipe.named = pipe.steps + 1, self.named
        if pipe.requirements.weighing:
            names, losses = self.step.names, self.step._losses
            met = dict.fromkeys([*self.step.absent_names, *names])
            # Losses that no homogenizer reads may be on a GPU, for which the CPU would wait.
            read = {} if losses is None or not losses.is_cpu else keyed.mean_numbers(names, losses)
            pipe.last_losses = {**met, **pipe.last_losses, **read}
        pipe.idle_steps = pipe.idle_steps + 1 if self.idle else 0
        if pipe.idle_steps == STEPS_OF_ONE_TASK:
            warnings.warn(
                f"{pipe} had no effect in the last {STEPS_OF_ONE_TASK} steps, because each had one task. If batches "
                "come from one data set at a time, name the tasks and use tracked(method=...), which keeps rows, or a "
                "method with weights for absent tasks, such as static, uw or peakscale; or add up the gradients of "
                "several batches (gradhomog.accumulated, or window=True of a HomogenizedTrainer), or draw batches from "
                "all data sets.",
                OneTaskWarning,
                stacklevel=4,
            )

    @functools.cached_property
    def result(self) -> StepReport:
        """The report of the step."""
        before, rows, losses = self.step._jacobian, self.rows, self.step._losses
        weights = rows.weights().detach() if before in (rows, rows.source) else None
        known = self.inspect or "total_gramian" in before.__dict__
        reported = self.outcomes if self.inspect else ()
        return StepReport(
            self.direction, self.step.keys, None if losses is None else losses.detach(), weights,
            before.total_gramian.detach().clone() if known else None,  # a copy: the cache is shared
            [StageReport(one.member.selector, one.rows.gramian().detach()) for one in reported],
            self.measured, tuple(str(one.member) for one in self.outcomes if not one.result.converged),
        )  # fmt: skip


def pipeline(
    homogenizers: str | Pipeline | Sequence[Entry] | None = None,
    *,
    nonfinite: Nonfinite | None = None,
    registry: Registry | None = None,
    debug: bool = False,
) -> Pipeline:
    """Create a pipeline from homogenizers by name, with options, in the order in which they act.

    A preset, whose factory returns entries instead of a homogenizer, is expanded in place.

    Args:
        homogenizers: text such as `"isi + reweight(beta=1.5)"`; or a list of names, `(name, options)` and `Homogenizer`
            objects; `"none"`, `""`, `[]` or None for the empty pipeline, which is the plain learner. A Pipeline is
            returned unchanged.
        nonfinite: see `Pipeline`; `"raise"` by default.
        registry: the registry that resolves names; by default that of the installed distributions.
        debug: raise if a stage modifies its inputs in place; costs a copy of the rows per stage.

    Raises:
        ExpressionError, UnknownPluginError, AmbiguousPluginError, DisabledPluginError, PluginLoadError, OptionError.

    >>> pipeline("static(weights=[1, 3]) + pcgrad")
    Pipeline('static(weights=[1, 3]) + pcgrad', nonfinite='raise')
    """
    if isinstance(homogenizers, Pipeline):
        if nonfinite not in (None, homogenizers.nonfinite):
            raise OptionError(
                f"`nonfinite` must be {homogenizers.nonfinite!r}, as in the pipeline; got {nonfinite!r}. Omit it."
            )
        return homogenizers
    members, text = assemble(homogenizers, registry or installed())
    return Pipeline(members, nonfinite or "raise", text, debug=debug)


class Pipeline:
    """Homogenizers in order, created by `gradhomog.pipeline("isi + reweight(beta=1.5)")`; empty, the plain learner.

    Args:
        members: the homogenizers, in the order in which their stages act.
        nonfinite: the policy for a task whose loss or row contains NaN or infinity: `"raise"` a `NonfiniteError` that
            names the task and change no state, or `"drop"` the task and average over the others (not with a
            homogenizer that chooses tasks, such as `tracked`).
        text: the text that the user wrote, if it differs from the names of the members.
        debug: see `pipeline`.
        group: the name of a group of parameters, see `group` below; its random numbers differ from those of others.

    Attributes:
        requirements: what the members require of a step, and the members that act at each stage.
        steps: the number of completed steps; random numbers are a function of it.
        resumed_at: `steps` when the pipeline was created or its state was loaded.
        named: True if the state is kept under the names of tasks, False if under their positions, None without state.
        last_losses: the last loss of each task by the key of its state, None if it is unknown; only with weights.
        idle_steps: the number of consecutive steps of one task without an effect.
        is_attached: True within the context of `attached`.
    """

    def __init__(
        self, members: Sequence[Member] = (), nonfinite: Nonfinite = "raise", text: str | None = None, *,
        debug: bool = False, group: str = "",
    ) -> None:  # fmt: skip
        self.members, self.debug = tuple(members), debug
        self.nonfinite: Nonfinite = nonfinite
        self.steps, self.resumed_at, self._text = 0, 0, text
        self.named: bool | None = None
        self.last_losses: dict[str, float | None] = {}
        self.idle_steps = 0
        self.groups: dict[str, Pipeline] = {}
        self.is_attached = False
        self.requirements = Requirements(self.members)
        if nonfinite not in ("raise", "drop"):
            raise OptionError(f"`nonfinite` must be 'raise' or 'drop'; got {nonfinite!r}.")
        if nonfinite == "drop" and self.requirements.choosing:
            raise OptionError(
                f"`nonfinite` must be 'raise' with {self.requirements.choosing[0].selector}: a task that is not finite "
                "would be dropped, and chosen again in every step. Lower the learning rate if the error occurs."
            )
        seeds = [member.homogenizer.seed for member in members]
        # The draws of a member differ from those of an earlier one with the same seed, and in each group of parameters.
        self._seed_offsets = {
            member: (seeds[:index].count(seeds[index]) << 40) + zlib.crc32(group.encode())  # 0 without a group
            for index, member in enumerate(members)
        }

    def __str__(self) -> str:
        if self._text is not None:
            return self._text
        return expression.render([(member.selector, dict(member.options)) for member in self.members])

    def __repr__(self) -> str:
        return f"Pipeline({str(self)!r}, nonfinite={self.nonfinite!r})"

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Homogenizer]:
        return (member.homogenizer for member in self.members)

    # -- before there are rows ---------------------------------------------------------------------------------------

    @contextmanager
    def attached(self, encoder: nn.Module) -> Iterator[None]:
        """Apply the `attach` stages to the encoder within the context; afterwards, or after an error, restore it."""
        before, self.is_attached = self.is_attached, True
        try:
            with ExitStack() as stack:
                for member in self.requirements.attaching:
                    stack.callback(member.attach(encoder))
                yield
        except Exception as cause:
            for member in self.requirements.attaching:
                if member.caused(cause) and not isinstance(cause, GradhomogError):
                    raise member.failure("a hook that its `attach` registered", cause) from cause
            raise
        finally:
            self.is_attached = before

    def begin(self, key: TaskKey, part: Part) -> None:
        """Call `begin` of the homogenizers, before the encoder runs on the support or query inputs of a task."""
        for member in self.requirements.beginning:
            seed = member.homogenizer.seed + self._seed_offsets[member]
            number = 1 + get_args(Part).index(part)
            member.call("begin", key, part, seeded_generator(seed, self.steps, key.slot, number))

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> list[Tensor]:
        """Apply the `transform` stages to query features `[tasks, queries, features]`.

        Returns the features before the first stage and after each stage. The last are the input of the head; the
        gradients of the losses w.r.t. all of them are the `feature_grads` of `homogenize`.
        """
        stage_features = [features]
        for member in self.requirements.transforming:
            stage_features.append(member.call("transform", stage_features[-1], keys))
        return stage_features

    def choose(self, tasks: int | Sequence[str] | Sequence[TaskKey]) -> tuple[Any, ...]:
        """Return the tasks whose losses the next step needs: all, unless a homogenizer such as `tracked` keeps rows.

        `tasks` is the number of tasks, or their names; the result contains positions, or names. Pass None for the
        losses of the others. The result is a function of the state: it is the same until the next step. With `per`,
        the first group chooses for all; use a pipeline either with `per` or without it.

        >>> pipeline("tracked").choose(["equation", "boundary"])
        ('equation',)
        """
        first = next(iter(self.groups.values()), self)  # groups of parameters receive rows of the same tasks
        keys, labels = _keys_of(tasks)
        first._check_named(keys)
        for member in first.requirements.choosing:
            chosen = sorted(member.call("choose", keys))
            keys, labels = [keys[index] for index in chosen], [labels[index] for index in chosen]
        return tuple(labels)

    # -- the step ----------------------------------------------------------------------------------------------------

    @overload
    def combine(
        self, jacobian: Tensor, losses: Tensor | Sequence[float] | None = ..., *, domains: Sequence[str] | None = ...,
        features: Tensor | Sequence[Tensor] = ..., feature_grads: Tensor | Sequence[Tensor] = ...,
        targets: Tensor | None = ..., kernel_traces: Tensor | Sequence[float] | None = ..., create_graph: bool = ...,
    ) -> Tensor: ...  # fmt: skip

    @overload
    def combine(
        self, jacobian: Mapping[str, Tensor] | Jacobian, losses: Tensor | Sequence[float] | None = ..., *,
        domains: Sequence[str] | None = ..., features: Tensor | Sequence[Tensor] = ...,
        feature_grads: Tensor | Sequence[Tensor] = ..., targets: Tensor | None = ...,
        kernel_traces: Tensor | Sequence[float] | None = ..., create_graph: bool = ...,
    ) -> Direction: ...  # fmt: skip

    @uncompiled
    def combine(
        self,
        jacobian: Rows,
        losses: Tensor | Sequence[float] | None = None,
        *,
        domains: Sequence[str] | None = None,
        features: Tensor | Sequence[Tensor] = (),
        feature_grads: Tensor | Sequence[Tensor] = (),
        targets: Tensor | None = None,
        kernel_traces: Tensor | Sequence[float] | None = None,
        create_graph: bool = False,
    ) -> Tensor | Direction:
        """Return the direction of the shared parameters for the task gradients, and update the homogenizers' states.

        Args:
            jacobian: one gradient per task, `[tasks, params]` or a dict of `[tasks, *shape]`; never copied as a whole
                and never modified. The direction has its dtype; N×N algebra is done in float64.
            losses: `[tasks]`, for homogenizers that read them.
            domains: one name per task, under which homogenizers keep its state; without names, under its position.
                Tasks of one name, for example that of a domain, share one state.
            features, feature_grads: `[tasks, queries, features]`, for homogenizers that read them: the input of
                `transform`, and the gradients of the losses w.r.t. its output. If several homogenizers transform,
                sequences: all tensors that `transform` returned, and the gradients w.r.t. each.
            targets: `[tasks, queries]`, the classes of the queries.
            kernel_traces: `[tasks]`, ≥ 0, for homogenizers that read them: the traces of the tangent kernels of the
                tasks' residuals over their numbers of residuals, which `gradhomog.backward` computes from residuals.
            create_graph: keep the graph from jacobian and losses to the direction. Every homogenizer must claim
                `differentiable`.

        Returns:
            `[params]`, or a dict of `[*shape]`.

        Raises:
            NonfiniteError, NotDifferentiableError, OptionError, PluginRunError, DataError: no state has changed.

        Cost: one read of the rows for the direction, and one for the Gramian if a method reads it.

        >>> import torch, gradhomog
        >>> jacobian = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
        >>> gradhomog.pipeline("pcgrad").combine(jacobian)
        tensor([0.2500, 0.7500])
        """
        if len(features) or len(feature_grads):
            transforms = len(self.requirements.transforming)
            features = features_at_stages("features", features, transforms)
            feature_grads = features_at_stages("feature_grads", feature_grads, transforms)
        step = make_step(
            jacobian, losses, domains=domains, features=list(features), feature_grads=list(feature_grads),
            targets=targets, kernel_traces=kernel_traces,
        )  # fmt: skip
        pending = self.compute(step, create_graph=create_graph)
        pending.commit()
        return pending.direction[""] if isinstance(jacobian, Tensor) else pending.direction

    @uncompiled
    def homogenize(
        self, jacobian: Rows, losses: Tensor | Sequence[float] | None = None, *, create_graph: bool = False,
        inspect: bool = False, nonfinite: Nonfinite | None = None, **inputs: Any,
    ) -> StepReport:  # fmt: skip
        """Like `combine`, but return a report of the step, for custom learners and trainers.

        Args:
            inspect, nonfinite: as in `compute`.
            inputs: `domains`, `targets`, `kernel_traces` as in `combine`; `slots`: positions of the tasks in the full
                batch, if some tasks are absent from this step; `features`, `feature_grads`: sequences of tensors
                `[tasks, queries, features]` before and after each `transform` stage.
        """
        step = make_step(jacobian, losses, **inputs)
        pending = self.compute(step, create_graph=create_graph, inspect=inspect, nonfinite=nonfinite)
        pending.commit()
        return pending.result

    def compute(
        self, step: Step, *, create_graph: bool = False, inspect: bool = False, nonfinite: Nonfinite | None = None
    ) -> PendingStep:
        """Compute the step without changing any state; `commit` of the result assigns the new states.

        Args:
            create_graph: as in `combine`.
            inspect: compute the Gramian of the rows, also after every stage, even if no stage reads it.
            nonfinite: the policy for this step only.
        """
        requirements = self.requirements
        if len(step.keys) > requirements.max_tasks or (create_graph and not requirements.differentiable):
            requirements.raise_unsupported(step.tasks, create_graph)
        named = self._check_named(step.keys) if requirements.updating else None
        with torch.set_grad_enabled(create_graph):
            step = self._prepare(step, create_graph, inspect)
            if (nonfinite or self.nonfinite) == "drop":
                step = drop_nonfinite(step, requirements.transforming)
            if "gramian" in requirements.in_every_step:
                require_finite_gramian(step, requirements.transforming)
            if requirements.weighing and (absent := absent_keys(step, self.last_losses)) != step.absent:
                step = replace(step, absent=absent)
            rows, outcomes = self._run(step)
            direction = rows.mean()
        others = step._feature_grads if step._losses is None else (step._losses, *step._feature_grads)
        if not step._jacobian.rows.all_finite([*direction.values(), *others]):
            raise find_cause(step, outcomes, requirements.transforming)
        measured, states = self._finish(step, outcomes, create_graph) if requirements.finishing else ({}, [])
        for outcome in outcomes:
            if not outcome.result.converged:
                warnings.warn(f"the solver of {outcome.member} did not converge", ConvergenceWarning, 4)
        idle = bool(outcomes) and step.tasks == 1 and all(outcome.is_idle for outcome in outcomes)
        return PendingStep(self, step, direction, rows, outcomes, measured, states, named, inspect, idle)

    def _prepare(self, step: Step, create_graph: bool, inspect: bool) -> Step:
        """Return the step without its graph, unless it is required, and compute the statistics of every step."""
        losses, jacobian, requirements = step._losses, step._jacobian, self.requirements
        has_graph = jacobian.requires_grad or step._features or (losses is not None and losses.requires_grad)
        if has_graph and not create_graph:
            step = step.detach()
        if step._losses is not None and not step._losses.is_cpu and "losses" in requirements.statistics:
            # Otherwise they stay on their device, because the CPU would wait for it.
            step = replace(step, _losses=step._losses.cpu())
        if inspect or "gramian" in requirements.in_every_step:
            _ = step._jacobian.total_gramian  # norms are then its diagonal
        elif "norms" in requirements.in_every_step:
            _ = step._jacobian.total_squared_norms  # before `mean`, which frees the graph of a lazy Jacobian
        return step

    def _run(self, step: Step) -> tuple[Jacobian, list[StageOutcome]]:
        """Return the rows after all `mix` and `rows` stages, and a record of each of these stages."""
        rows, outcomes, transforming = step._jacobian, list[StageOutcome](), self.requirements.transforming
        absent_losses: Any = losses_of_absent(step, self.last_losses) if step.absent else None
        for member in self.requirements.acting:
            view = self._view(step, member, rows)
            if member.stage == "rows" and not all(rows.finite_tasks()):
                # The result may be finite although a row is not, for example a median.
                raise find_cause(step, outcomes, transforming)
            try:
                result = call_and_compare(member, member.stage or "", view) if self.debug else member.act(view)
                if step.absent:
                    result, absent_losses = weigh_with_absent(member, view, result, absent_losses)
            except GradhomogError as error:
                require_finite_inputs(step, transforming, error)
                raise find_overflow(member, view, error) from error.__cause__
            rows = rows.mix(result.value) if member.stage == "mix" else result.value
            outcomes.append(StageOutcome(member, view, result, rows))
            if member.homogenizer.weights_losses and member.stage == "mix" and result.value.dim() > 1:
                raise member.invalid("mix", "weights `[tasks]`, because `weights_losses` is True", result.value)
            if member.homogenizer.weights_losses and self.requirements.statistics & {"losses", "kernel_traces"}:
                step = _with_weighted_losses(step, result.value)
        return rows, outcomes

    def _view(self, step: Step, member: Member, rows: Jacobian) -> Step:
        """Return a member's view of the step: features are those of its `transform`, or the encoder's output."""
        transforming = self.requirements.transforming
        return Step(
            step.keys, rows, step._losses, step._features, step._feature_grads, step._targets, step._kernel_traces,
            self.steps, None, member.needs, member,
            transforming.index(member) if member in transforming else -1,
            member.homogenizer.seed, self._seed_offsets[member], step.absent,
        )  # fmt: skip

    def _finish(
        self, step: Step, outcomes: Sequence[StageOutcome], create_graph: bool
    ) -> tuple[Measurements, list[tuple[Member, Mapping[str, Any]]]]:
        """Return measurements by name (the second of one name is `name#2`) and new states, without assigning them."""
        measured: Measurements = {}
        states: list[tuple[Member, Mapping[str, Any]]] = []
        views = {outcome.member: outcome.step.with_aux(outcome.result.aux) for outcome in outcomes}
        with torch.no_grad():
            for member in self.requirements.finishing:
                view = views.get(member) or self._view(step, member, step._jacobian)
                view = view.detach() if create_graph else view
                if member in self.requirements.measuring and (values := dict(member.call("measured", view))):
                    again = sum(name.split("#")[0] == member.selector for name in measured)
                    measured[f"{member.selector}#{again + 1}" if again else member.selector] = values
                if member in self.requirements.updating:
                    try:
                        state = call_and_compare(member, "update", view) if self.debug else member.update(view)
                    except GradhomogError as error:
                        raise find_overflow(member, view, error) from error.__cause__
                    states.append((member, state))
        return measured, states

    # -- state -------------------------------------------------------------------------------------------------------

    def _check_named(self, keys: Sequence[TaskKey]) -> bool:
        """Return True if the tasks have names.

        Raises:
            OptionError: the state is kept under names, and the tasks have none, or the reverse.
        """
        named = bool(keys[0].domain)
        if self.named not in (None, named):
            raise OptionError(
                f"tasks had {'names' if self.named else 'no names'} in earlier steps, so their state is kept under "
                f"{'names' if self.named else 'positions'}; got tasks "
                f"{'with names: ' + ', '.join(key.domain for key in keys) if named else 'without names'}. Pass names "
                "in every step, with the losses (a dict, or `domains`) and to `Pipeline.choose`, or never. For other "
                "tasks create another pipeline."
            )
        return named

    def group(self, name: str) -> Pipeline:
        """Return the pipeline of one group of parameters, for groups that are homogenized separately.

        It has a separate state, starts as a copy of this pipeline, and is saved and loaded with it.

        Raises:
            OptionError: a homogenizer acts before the rows exist, therefore on all parameters together.
        """
        if name not in self.groups:
            self.requirements.require_rows_only()
            copies = [replace(member, homogenizer=copy.deepcopy(member.homogenizer)) for member in self.members]
            self.groups[name] = Pipeline(copies, self.nonfinite, self._text, debug=self.debug, group=name)
        return self.groups[name]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the state of every homogenizer and group, for `torch.save`."""
        groups = {f"{GROUP}{name}": group.state_dict() for name, group in self.groups.items()}
        states = {name: member.call("state_dict") for name, member in self._saved_members().items()}
        return {"steps": self.steps, "named": self.named, "last_losses": dict(self.last_losses), **states, **groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a saved state; the pipeline must have the same homogenizers in the same order.

        Raises:
            ConfigError: the state was saved by another pipeline; nothing has changed.
        """
        members = self._saved_members()
        saved = state if isinstance(state, Mapping) else {}
        groups = [name for name in saved if isinstance(name, str) and name.startswith(GROUP)]
        types = {
            "steps": Annotated[int, Ge(0)], "named": bool | None, "last_losses": Mapping[str, float | None],
            **dict.fromkeys([*members, *groups], Any),
        }  # fmt: skip
        check_state(f"the pipeline '{self}'", state, types)
        before, groups_before = {name: member.call("state_dict") for name, member in members.items()}, self.groups
        try:
            self.groups = {}
            for name, member in members.items():
                member.call("load_state_dict", state[name])
            for name in groups:
                self.group(name.removeprefix(GROUP)).load_state_dict(state[name])
        except Exception:
            self.groups = groups_before
            for name, member in members.items():
                member.call("load_state_dict", before[name])  # all or nothing
            raise
        self.steps = self.resumed_at = state["steps"]
        self.named, self.last_losses = state["named"], dict(state["last_losses"])

    def _saved_members(self) -> dict[str, Member]:
        """Return the members by their names in a saved state."""
        return {f"{index}:{member.selector}": member for index, member in enumerate(self.members)}


def _with_weighted_losses(step: Step, weights: Tensor) -> Step:
    """Return the step with losses and traces of kernels times weights `[tasks]`, which all are on the CPU."""
    losses, traces = step._losses, step._kernel_traces
    return replace(
        step, _losses=None if losses is None else losses * weights,
        _kernel_traces=None if traces is None else lambda *draws: weights * traces(*draws),
    )  # fmt: skip


def _keys_of(tasks: int | Sequence[str] | Sequence[TaskKey]) -> tuple[Sequence[TaskKey], Sequence[Any]]:
    """Return the keys of tasks, and how the caller refers to them: by name or position; see `Pipeline.choose`.

    Raises:
        OptionError: `tasks` has another form, or a name occurs twice.
    """
    if isinstance(tasks, int) and not isinstance(tasks, bool) and tasks > 0:
        return task_keys(range(tasks)), range(tasks)
    entries: tuple[Any, ...] = tuple(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else ()
    if entries and all(isinstance(entry, TaskKey) for entry in entries):
        return entries, range(len(entries))
    if not entries or not all(isinstance(entry, str) for entry in entries):
        raise OptionError(f"`tasks` must be the number of tasks or their names; got {tasks!r}.")
    if len(set(entries)) < len(entries):
        raise OptionError(f"`tasks` must be different names; got {list(entries)}. Pass the number of tasks instead.")
    return task_keys(range(len(entries)), entries), entries


Entry = str | tuple[str, Mapping[str, Any]] | Homogenizer
"""One entry of a pipeline: a name (or a text with several), a name with options, or an object."""


def assemble(homogenizers: str | Sequence[Entry] | None, registry: Registry) -> tuple[list[Member], str]:
    """Return the members in order, and the pipeline's text as the user wrote it; a preset is expanded in place.

    Raises:
        ExpressionError, UnknownPluginError, AmbiguousPluginError, DisabledPluginError, PluginLoadError, OptionError.
    """
    if not isinstance(homogenizers, str | Sequence | None):
        raise OptionError(
            f"a pipeline must be a text or a list of names and Homogenizer objects; got {homogenizers!r}."
        )
    entries: Sequence[Any] = expression.parse(homogenizers) if isinstance(homogenizers, str) else homogenizers or ()
    members: list[Member] = []
    texts: list[str] = []
    for entry in entries:
        if isinstance(entry, Homogenizer):
            found, text = [Member(entry, type(entry).__name__, {})], type(entry).__name__
        elif isinstance(entry, str):
            found, text = assemble(entry, registry)
            if text == "none" and len(entries) > 1:
                raise OptionError(f"'none' is the empty pipeline and cannot be combined with others; got {entries!r}.")
        elif isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Mapping):
            found, text = _make_members(registry, *entry), expression.render_one(*entry)
        else:
            raise OptionError(
                f"an entry of a pipeline must be a name, (name, options) or a Homogenizer object; got {entry!r}."
            )
        members += found
        texts.append(text)
    return members, " + ".join(texts) or "none"


def _make_members(registry: Registry, selector: str, options: Mapping[str, Any]) -> list[Member]:
    info, spec, made = registry.make("homogenizers", selector, options)
    if isinstance(made, Sequence) and not isinstance(made, str):
        return assemble(made, registry)[0]
    assert isinstance(spec, HomogenizerSpec)
    return [Member(info.checked(made, Homogenizer), selector, dict(options), info, spec)]
