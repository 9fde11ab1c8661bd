"""Whether what a step is given fits a pipeline: checked before anything is computed from it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradhomog.engine.member import Member
from gradhomog.errors import NotDifferentiableError, OptionError
from gradhomog.rows import AnyRows, blocks
from gradhomog.rows.unformed import UnformedRows


def check_members(members: Sequence[Member]) -> None:
    """Refuse a homogenizer object that is there twice, and one after another that must be the last."""
    objects = [id(member.homogenizer) for member in members]
    if len(set(objects)) < len(objects):
        raise OptionError("a pipeline must not hold the same homogenizer object twice; make a second one.")
    last = [member for member in members if member.must_be_last]
    if len(last) > 1:
        raise OptionError(
            f"{' and '.join(map(str, last))} must each be the last of a pipeline, so only one of them can be chosen. "
            f"Leave {' or '.join(repr(member.selector) for member in last)} out."
        )
    if last and members[-1] is not last[0]:
        after = members[list(members).index(last[0]) + 1 :]
        raise OptionError(
            f"{last[0]} must be the last of a pipeline, but {' and '.join(map(str, after))} "
            f"come{'s' if len(after) == 1 else ''} after it. Write '{last[0].selector}' at the end."
        )


def check_step(
    members: Sequence[Member],
    jacobian: AnyRows,
    losses: Tensor | None,
    domains: Sequence[str] | None,
    create_graph: bool,
) -> int:
    """The number of tasks, if rows, losses and domains agree on it and all members can do what is asked."""
    tasks = jacobian.tasks if isinstance(jacobian, UnformedRows) else len(next(iter(blocks(jacobian).values())))
    if losses is not None and losses.shape != (tasks,):
        raise OptionError(f"`losses` must have shape [{tasks}], one per task; got {tuple(losses.shape)}.")
    if domains and len(domains) != tasks:
        raise OptionError(f"`domains` must name one domain for each of the {tasks} tasks; got {list(domains)}.")
    if create_graph:
        for member in members:
            if member.spec is None or "differentiable" not in member.spec.traits:
                raise NotDifferentiableError(
                    f"{member} is not differentiable, so create_graph=True would cut the graph in silence. "
                    "Use create_graph=False, or a homogenizer that claims 'differentiable'."
                )
    return tasks


def at_taps(name: str, given: Tensor | Sequence[Tensor], transforms: int) -> Sequence[Tensor]:
    """One tensor before and one after each `transform`, of a tensor where at most one homogenizer transforms."""
    taps = transforms + 1
    if isinstance(given, Tensor) and taps <= 2:  # one transform reads its input there and its cotangents here
        return (given,) * taps
    if isinstance(given, Tensor) or (given and len(given) != taps):
        found = "a tensor" if isinstance(given, Tensor) else f"{len(given)} tensors"
        raise OptionError(
            f"`{name}` must be a sequence of {taps} tensors, one before and one after each of the {taps - 1} "
            f"homogenizers that transform features; got {found}. Pass what transform() returned, and the "
            "derivatives of the losses by each."
        )
    return given
