"""Requirements of a pipeline for a step, and the members that act at each of its stages; determined once."""

import math
from collections.abc import Iterable, Sequence

from gradhomog.errors import NotDifferentiableError, OptionError
from gradhomog.registry.specs import STATISTICS
from gradhomog.step.member import Member


class Requirements:
    """The requirements of the members of a pipeline; code outside the pipeline reads these, not the members.

    Attributes:
        acting: the members with `mix` or `rows`, in order.
        attaching, beginning, transforming, choosing, updating, measuring: the members that override the stage of that
            name, in order.
        finishing: those with `update` or `measured`, in order.
        statistics: all statistics that a stage may read once there are rows.
        readers: for each statistic the names of the members that read it, without those that read it only if it is
            available.
        reads_features: True if features, and gradients w.r.t. them, must be computed.
        in_every_step: those of them that are read in every step.
        weighing: True if a member weighs tasks relative to absent ones.
        max_tasks: the largest number of tasks that all members support.
        differentiable: True if all members claim derivatives.
        replacing_rows: names of the members that replace the rows by others than a mixture of them.
        keeping_rows: names of the members that keep rows from step to step, by parameter.

    Raises:
        OptionError: a member occurs twice, or members are in an order in which one of them has no effect.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        _check_order(members)
        self._members = members
        self.acting = tuple(member for member in members if member.stage)
        self.attaching, self.beginning, self.transforming, self.choosing, self.updating, self.measuring = (
            tuple(member for member in members if member.homogenizer.overrides(stage))
            for stage in ("attach", "begin", "transform", "choose", "update", "measured")
        )
        self.weighing = any(member.weighs for member in self.acting)
        self.finishing = tuple(member for member in members if member in (*self.updating, *self.measuring))
        readers = (*self.acting, *self.finishing)
        self.statistics = _needs(readers)
        self.in_every_step = _needs(member for member in readers if member.homogenizer.reads_rows_in_every_step)
        self.max_tasks = min([member.max_tasks for member in members], default=math.inf)
        self.differentiable = all(member.claims("differentiable") for member in members)
        self.readers = {statistic: _selectors(members, statistic) for statistic in STATISTICS}
        self.reads_features = bool(self.readers["features"]) or "features" in _needs(self.transforming)
        self.replacing_rows = [member.selector for member in members if member.stage == "rows"]
        self.keeping_rows = [
            member.selector for member in members if member.claims("stateful") and "jacobian" in member.needs
        ]

    def raise_unsupported(self, tasks: int, create_graph: bool) -> None:
        """Raise for the member that does not support the number of tasks, or derivatives.

        Raises:
            OptionError, NotDifferentiableError.
        """
        for member in self._members:
            if create_graph and not member.claims("differentiable"):
                raise NotDifferentiableError(
                    f"{member} is not differentiable, but create_graph=True requires it. "
                    "Use create_graph=False, or a homogenizer with the trait 'differentiable'."
                )
            if tasks > member.max_tasks:
                raise OptionError(
                    f"{member} supports at most {member.max_tasks} tasks, because more would need too much memory or "
                    f"time; got {tasks}."
                )

    def require_rows_only(self) -> None:
        """Raise if a member acts before the rows exist, and therefore not on groups of parameters.

        Raises:
            OptionError.
        """
        for member in (*self.attaching, *self.transforming, *self.beginning):
            raise OptionError(
                f"{member} acts in the network, before there are gradients, and cannot act on groups of "
                "parameters. Remove it, or homogenize all parameters together (per='model')."
            )


def _needs(members: Iterable[Member]) -> frozenset[str]:
    return frozenset[str]().union(*(member.needs for member in members))


def _selectors(members: Iterable[Member], statistic: str) -> list[str]:
    return [member.selector for member in members if member.requires(statistic)]


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
    last = [member for member in members if member.spec is not None and member.spec.last]
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
