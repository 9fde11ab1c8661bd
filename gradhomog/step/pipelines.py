"""Pipelines of homogenizers: creation from names, options and objects, and the homogenization of one step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.errors import ConvergenceWarning, OptionError
from gradhomog.registry import Registry, expression, installed
from gradhomog.rows import Direction, Jacobian
from gradhomog.step import choice, saved_state
from gradhomog.step.assembly import Entry, assemble
from gradhomog.step.homogenizer import Homogenizer, Part
from gradhomog.step.member import Member
from gradhomog.step.nonfinite import Nonfinite, check_policy, drop_nonfinite, find_cause
from gradhomog.step.reports import StepReport
from gradhomog.step.stages import Stages, attached, report
from gradhomog.step.step import KernelTraces
from gradhomog.step.step_inputs import Rows, features_at_stages, make_step_inputs
from gradhomog.step.task_key import TaskKey
from gradhomog.uncompiled import uncompiled


@dataclass(frozen=True, eq=False)
class PendingStep:
    """A computed step whose new homogenizer states are not assigned yet.

    Attributes:
        result: the report of the step.
        commit: assigns the new state of every homogenizer and increments the step count.
    """

    result: StepReport
    commit: Callable[[], None]


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
        group: the name of a group of parameters, see `part`; its random numbers differ from those of other groups.

    Attributes:
        steps: the number of completed steps; random numbers are a function of it.
        resumed_at: `steps` when the pipeline was created or its state was loaded.
        named: True if the state is kept under the names of tasks, False if under their positions, None without state.
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
        self.parts: dict[str, Pipeline] = {}
        self.is_attached = False
        self.stages = Stages(self.members, group)
        check_policy(nonfinite, self.stages.choosing)

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

    @contextmanager
    def attached(self, encoder: nn.Module) -> Iterator[None]:
        """Apply the `attach` stages to the encoder within the context; afterwards, or after an error, restore it."""
        before, self.is_attached = self.is_attached, True
        try:
            with attached(self.stages.attaching, encoder):
                yield
        finally:
            self.is_attached = before

    def begin(self, key: TaskKey, part: Part) -> None:
        """Call `begin` of the homogenizers, before the encoder runs on the support or query inputs of a task."""
        if self.stages.beginning:
            self.stages.begin(key, part, self.steps)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> list[Tensor]:
        """Apply the `transform` stages to query features `[tasks, queries, features]`.

        Returns the features before the first stage and after each stage. The last are the input of the head; the
        gradients of the losses w.r.t. all of them are the `feature_grads` of `homogenize`.
        """
        stage_features = [features]
        for member in self.stages.transforming:
            stage_features.append(member.transform(stage_features[-1], keys))
        return stage_features

    def choose(self, tasks: int | Sequence[str] | Sequence[TaskKey]) -> tuple[Any, ...]:
        """Return the tasks whose losses the next step needs: all, unless a homogenizer such as `tracked` keeps rows.

        `tasks` is the number of tasks, or their names; the result contains positions, or names. Pass None for the
        losses of the others. The result is a function of the state: it is the same until the next step. With `per`,
        the first group chooses for all; use a pipeline either with `per` or without it.

        >>> pipeline("tracked").choose(["equation", "boundary"])
        ('equation',)
        """
        first = next(iter(self.parts.values()), self)  # groups of parameters receive rows of the same tasks
        keys, names = choice.keys_of(tasks)
        first._check_named(keys)
        positions = choice.choose(first.stages.choosing, keys)
        return tuple(names[position] for position in positions) if names else tuple(positions)

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
            transforms = len(self.stages.transforming)
            features = features_at_stages("features", features, transforms)
            feature_grads = features_at_stages("feature_grads", feature_grads, transforms)
        step = self.compute(
            jacobian, losses, domains=domains, features=list(features), feature_grads=list(feature_grads),
            targets=targets, kernel_traces=kernel_traces, create_graph=create_graph,
        )  # fmt: skip
        step.commit()
        return step.result.direction[""] if isinstance(jacobian, Tensor) else step.result.direction

    def homogenize(self, jacobian: Rows, losses: Tensor | Sequence[float] | None = None, **options: Any) -> StepReport:
        """Like `combine`, but return a report of the step, for learners and trainers. Options as in `compute`."""
        pending = self.compute(jacobian, losses, **options)
        pending.commit()
        return pending.result

    @uncompiled
    def compute(
        self, jacobian: Rows, losses: Tensor | Sequence[float] | None = None, *,
        domains: Sequence[str] | None = None, slots: Sequence[int] | None = None,
        features: Sequence[Tensor] = (), feature_grads: Sequence[Tensor] = (), targets: Tensor | None = None,
        kernel_traces: Tensor | Sequence[float] | KernelTraces | None = None,
        create_graph: bool = False, inspect: bool = False, nonfinite: Nonfinite | None = None,
    ) -> PendingStep:  # fmt: skip
        """Compute the step without changing any state; `commit` of the result assigns the new states.

        Args:
            domains, targets, create_graph: as in `combine`.
            slots: positions of the tasks in the full batch, if some tasks are absent from this step.
            features, feature_grads: `[tasks, queries, features]` before and after each `transform` stage.
            kernel_traces: as in `combine`, or a function that is called when a homogenizer reads the traces.
            inspect: compute the Gramian of the rows, also after every stage, even if no stage reads it.
            nonfinite: the policy for this step only.
        """
        inputs = make_step_inputs(
            self.members, jacobian, losses, domains=domains, slots=slots, features=features,
            feature_grads=feature_grads, targets=targets, kernel_traces=kernel_traces, create_graph=create_graph,
        )  # fmt: skip
        named = self._check_named(inputs.keys) if self.stages.updating else None
        with torch.set_grad_enabled(create_graph):
            if inspect or "gramian" in self.stages.needs:
                _ = inputs.jacobian.total_gramian  # norms are then its diagonal
            elif "norms" in self.stages.needs:
                _ = inputs.jacobian.total_squared_norms  # before `mean`, which frees the graph of a lazy Jacobian
            if (nonfinite or self.nonfinite) == "drop":
                inputs = drop_nonfinite(inputs, self.stages.transforming)
            factor = 1.0
            # Squares of narrower dtypes stay within the range of float64. Kept rows have one unit for all steps.
            keeps_rows = bool(self.stages.updating) and "jacobian" in self.stages.needs
            if inputs.jacobian.dtype == torch.float64 and self.stages.needs & {"gramian", "norms"} and not keeps_rows:
                inputs, factor = inputs.in_range()
            rows, outcomes = self.stages.run(inputs, self.steps, self.debug)
            direction = rows.mean()
            if factor != 1:
                direction = {name: value / factor for name, value in direction.items()}
        others = [*inputs.feature_grads] if inputs.losses is None else [inputs.losses, *inputs.feature_grads]
        if not inputs.jacobian.all_finite([*direction.values(), *others]):
            raise find_cause(inputs, outcomes, self.stages.transforming)
        measured, states = self.stages.new_states(inputs, outcomes, self.steps, create_graph, self.debug)

        def commit() -> None:
            for member, state in states:
                member.homogenizer.assign_state(state)
            self.steps, self.named = self.steps + 1, named

        result = report(inputs, direction, rows, outcomes, measured, inspect)
        if result.unconverged:
            warnings.warn(f"the solver of {' and '.join(result.unconverged)} did not converge", ConvergenceWarning, 4)
        return PendingStep(result, commit)

    def rows_after(self, jacobian: Rows, losses: Tensor, **options: Any) -> Jacobian:
        """Return the rows after all `mix` and `rows` stages, for inspection. `options` as in `make_step_inputs`."""
        inputs = make_step_inputs(self.members, jacobian, losses, **options)
        with torch.no_grad():
            if self.nonfinite == "drop":
                inputs = drop_nonfinite(inputs, self.stages.transforming)
            return self.stages.run(inputs, self.steps, self.debug)[0]

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

    def part(self, name: str) -> Pipeline:
        """Return the pipeline of one group of parameters, for groups that are homogenized separately.

        It has a separate state, starts as a copy of this pipeline, and is saved and loaded with it.

        Raises:
            OptionError: a homogenizer acts before the rows exist, therefore on all parameters together.
        """
        if name not in self.parts:
            self.stages.require_rows_only()
            copies = [replace(member, homogenizer=copy.deepcopy(member.homogenizer)) for member in self.members]
            self.parts[name] = Pipeline(copies, self.nonfinite, self._text, debug=self.debug, group=name)
        return self.parts[name]

    def count_step(self) -> None:
        """Count a step in which groups of parameters were homogenized separately."""
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the state of every homogenizer and group, for `torch.save`."""
        parts = {f"{saved_state.PART}{name}": part.state_dict() for name, part in self.parts.items()}
        return {"steps": self.steps, "named": self.named, **saved_state.save(self.members), **parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a saved state; the pipeline must have the same homogenizers in the same order.

        Raises:
            ConfigError: the state was saved by another pipeline; nothing has changed.
        """
        parts = saved_state.validate_and_list_parts(self.members, state)
        before, parts_before = self.state_dict(), self.parts
        try:
            saved_state.load(self.members, state)
            self.parts = {}
            for name in parts:
                self.part(name).load_state_dict(state[f"{saved_state.PART}{name}"])
        except Exception:
            self.parts = parts_before
            saved_state.load(self.members, before)  # all or nothing
            raise
        self.steps = self.resumed_at = state["steps"]
        self.named = state["named"]
