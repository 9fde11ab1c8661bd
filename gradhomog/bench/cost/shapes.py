"""A kernel's tables: one for each input shape, sharing the time and the number of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from gradhomog.bench.cost.table import Table
from gradhomog.bench.cost.timing import Work
from gradhomog.bench.threads import threads
from gradhomog.errors import OptionError

Works = dict[str, Work]
Shape = TypeVar("Shape", bound=Sequence[int])


def for_each_shape(
    shapes: Sequence[Shape],
    words: str,
    works: Callable[[Shape], Works],
    table: Callable[[Works, Shape, float], Table],
    *,
    seconds: float,
    thread_count: int,
) -> list[Table]:
    """Make all works, then time them shape by shape, with an equal share of the seconds each.

    Raises:
        OptionError: a shape does not have the sizes that `words` names, "tasks x queries x features".
    """
    for shape in shapes:
        if len(shape) != words.count(" x ") + 1 or min(shape) < 1:
            raise OptionError(f"`--shape` must be {words}, each at least 1; got {'x'.join(map(str, shape))}.")
    made = [works(shape) for shape in shapes]
    with threads(thread_count):
        return [table(one, shape, seconds / len(shapes)) for one, shape in zip(made, shapes, strict=True)]
