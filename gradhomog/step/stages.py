"""Run the stages of a pipeline, in order, for one step."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError, OptionError
from gradhomog.rows import Direction, Jacobian, MixedJacobian
from gradhomog.step.homogenizer import Part
from gradhomog.step.input_guard import InputGuard
from gradhomog.step.member import Member
from gradhomog.step.nonfinite import StageOutcome, find_overflow, require_finite_inputs, require_finite_rows
from gradhomog.step.reports import StageReport, StepReport
from gradhomog.step.step import Step, seeded_generator
from gradhomog.step.step_inputs import StepInputs
from gradhomog.step.task_key import TaskKey
from gradhomog.step.validate import numbers_finite

PART_NUMBERS: Mapping[Part, int] = {"support": 1, "query": 2}


class Stages:
    """The members that act at each stage, determined once, so that a step calls only members that act.

    Attributes:
        acting: members with `mix` or `rows`, in order.
        attaching, beginning, transforming, choosing, updating, measuring: members that override the stage of that name,
            in order.
        needs: statistics that any of them reads.
        seed_offsets: added to the seed of a member, so that its draws differ from those of an earlier one with the same
            seed, and those of a group of parameters (`group`, its name) from those of other groups.
    """

    def __init__(self, members: Sequence[Member], group: str = "") -> None:
        _check_order(members)
        self.members = tuple(members)
        self.acting = tuple(member for member in members if member.stage)
        self.attaching = self._overriding("attach")
        self.beginning = self._overriding("begin")
        self.transforming = self._overriding("transform")
        self.choosing = self._overriding("choose")
        self.updating = self._overriding("update")
        self.measuring = self._overriding("measured")
        reading = (*self.acting, *self.updating, *self.measuring)
        self.needs = frozenset[str]().union(*(member.needs for member in reading))
        seeds = [member.homogenizer.seed for member in members]
        self.seed_offsets = {
            member: (seeds[:index].count(seeds[index]) << 40) + zlib.crc32(group.encode())  # 0 without a group
            for index, member in enumerate(members)
        }

    def _overriding(self, stage: str) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.homogenizer.overrides(stage))

    def require_rows_only(self) -> None:
        """Raise if a member acts before the rows exist, and therefore not on groups of parameters.

        Raises:
            OptionError: a member acts in the network.
        """
        for member in self.members:
            if member.before_rows or member.homogenizer.overrides("begin"):
                raise OptionError(
                    f"{member} acts in the network, before there are gradients, and cannot act on groups of "
                    "parameters. Remove it, or homogenize all parameters together (per='model')."
                )

    def begin(self, key: TaskKey, part: Part, number: int) -> None:
        """Call `begin` of the members that override it, with a generator for this task and part."""
        for member in self.beginning:
            seed = member.homogenizer.seed + self.seed_offsets[member]
            member.begin(key, part, seeded_generator(seed, number, key.slot, PART_NUMBERS[part]))

    def run(self, inputs: StepInputs, number: int, debug: bool) -> tuple[Jacobian, list[StageOutcome]]:
        """Return the rows after all `mix` and `rows` stages, and a record of each of these stages."""
        rows, outcomes = inputs.jacobian, list[StageOutcome]()
        for member in self.acting:
            step = self._step(member, inputs, rows, number)
            guard = InputGuard(inputs, rows) if debug else None
            if member.stage == "rows":  # the result may be finite although a row is not, for example a median
                require_finite_rows(inputs, rows, outcomes, self.transforming)
            try:
                if member.stage == "mix":
                    result = member.mix(step)
                    rows = rows.mix(result.value)
                else:
                    result = member.rows(step)
                    rows = result.value
            except GradhomogError as error:
                require_finite_inputs(inputs, self.transforming, error)
                raise (find_overflow(member, rows) or error) from error.__cause__
            if guard is not None:
                guard.check(member)
            step = step if result.aux is None else step.with_aux(result.aux)
            outcomes.append(StageOutcome(member, step, result, rows))
        return rows, outcomes

    def _step(self, member: Member, inputs: StepInputs, rows: Jacobian, number: int) -> Step:
        """Return a member's view of the step: features are those of its `transform`, or the encoder's output."""
        losses = inputs.losses_on_cpu if "losses" in member.needs else None
        features = feature_grads = targets = None
        if "features" in member.needs:
            index = self.transforming.index(member) if member in self.transforming else -1
            features = inputs.features[max(index, 0)] if inputs.features else None
            feature_grads = inputs.feature_grads[index + 1] if inputs.feature_grads else None
            targets = inputs.targets
        return Step(
            inputs.keys, number, rows, losses, features, feature_grads, targets, member.needs, member,
            member.homogenizer.seed, self.seed_offsets[member], _kernel_traces=inputs.kernel_traces,
        )  # fmt: skip

    def new_states(
        self, inputs: StepInputs, outcomes: Sequence[StageOutcome], number: int, create_graph: bool, debug: bool
    ) -> tuple[dict[str, Mapping[str, float | Sequence[float]]], list[tuple[Member, Mapping[str, Any]]]]:
        """Return measurements by name (the second of one name is `name#2`) and new states, without assigning them."""
        if not (self.updating or self.measuring):
            return {}, []
        measured: dict[str, Mapping[str, float | Sequence[float]]] = {}
        states = []
        steps = {outcome.member: outcome.step for outcome in outcomes}
        with torch.no_grad():
            for member in self.members:
                updates, measures = member in self.updating, member in self.measuring
                if not (updates or measures):
                    continue
                step = steps.get(member) or self._step(member, inputs, inputs.jacobian, number)
                step = step.detach() if create_graph else step
                if measures and (values := member.measured(step)):
                    again = sum(name.split("#")[0] == member.selector for name in measured)
                    measured[f"{member.selector}#{again + 1}" if again else member.selector] = values
                if updates:
                    guard = InputGuard(inputs, inputs.jacobian) if debug else None
                    states.append((member, member.update(step)))
                    if not numbers_finite(states[-1][1]):
                        raise find_overflow(member, inputs.jacobian) or member.not_finite("update")
                    if guard is not None:
                        guard.check(member, "update")
        return measured, states


@contextmanager
def attached(members: Sequence[Member], encoder: nn.Module) -> Iterator[None]:
    """Attach the members to the encoder within the context; afterwards, or after an error, detach them."""
    with ExitStack() as stack:
        for member in members:
            stack.callback(member.attach(encoder))
        try:
            yield
        except GradhomogError:
            raise
        except Exception as cause:
            for member in members:
                if member.caused(cause):
                    raise member.failure("a hook that its `attach` registered", cause) from cause
            raise


def report(
    inputs: StepInputs, direction: Direction, rows: Jacobian, outcomes: Sequence[StageOutcome],
    measured: Mapping[str, Mapping[str, float | Sequence[float]]], inspect: bool,
) -> StepReport:  # fmt: skip
    """Return the result of a step."""
    weights: Tensor | None = None
    if rows is inputs.jacobian:
        weights = torch.ones(rows.tasks, dtype=torch.float64)
    elif isinstance(rows, MixedJacobian) and rows.source is inputs.jacobian:
        weights = rows.weights().detach()
    unconverged = tuple([str(one.member) for one in outcomes if not one.result.converged]) if outcomes else ()
    known = inspect or "total_gramian" in inputs.jacobian.__dict__
    losses = None if inputs.losses is None else inputs.losses.detach()
    gramian = inputs.jacobian.total_gramian.detach().clone() if known else None  # a copy: the cache is shared
    stages = [StageReport(one.member.selector, one.rows.gramian().detach()) for one in outcomes] if inspect else ()
    return StepReport(direction, inputs.keys, losses, weights, gramian, stages, measured, unconverged)


def _check_order(members: Sequence[Member]) -> None:
    """Raise for an object that occurs twice, and for members in an order in which one of them has no effect.

    The direction of one row is this row, so a method on rows before one that chooses tasks has no effect.
    """
    objects = [id(member.homogenizer) for member in members]
    if len(set(objects)) < len(objects):
        raise OptionError("a pipeline must not contain the same homogenizer object twice; create a second one.")
    for index, member in enumerate(members):
        before = [earlier for earlier in members[:index] if earlier.stage]
        if member.homogenizer.overrides("choose") and before:
            raise OptionError(
                f"{before[0]} acts on the rows of a step, but {member} chooses the tasks of a step; of one row every "
                f"method returns this row. Remove {before[0].selector!r}, or write "
                f"{member.selector}(method={before[0].selector!r})."
            )
    last = [member for member in members if member.must_be_last]
    if len(last) > 1:
        raise OptionError(
            f"{' and '.join(map(str, last))} must each be the last of a pipeline, so they cannot be combined. "
            f"Remove {' or '.join(repr(member.selector) for member in last)}."
        )
    if last and members[-1] is not last[0]:
        after = members[list(members).index(last[0]) + 1 :]
        raise OptionError(
            f"{last[0]} must be the last of a pipeline, but {' and '.join(map(str, after))} "
            f"come{'s' if len(after) == 1 else ''} after it. Write '{last[0].selector}' at the end."
        )
