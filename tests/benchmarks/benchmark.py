"""A benchmark: one operation beside the implementations of other libraries, on inputs of several shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gradhomog.errors import OptionError
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.profiling.timing import Progress
from tests.benchmarks.case import Case, Clock
from tests.benchmarks.comparison import Comparison

Shape = Sequence[int]


@dataclass(frozen=True)
class Benchmark:
    """The works of an operation for each shape of its inputs.

    Attributes:
        name: of its module in `tests/benchmarks`.
        kind: of the plugins that it times.
        forms: meanings of a shape, such as `tasks x queries x features`, which differ in the number of sizes.
        shapes: the default ones.
        case: from expressions (of homogenizers or learners; none: the default ones) and a shape.
    """

    name: str
    kind: Literal["homogenizer", "learner"]
    forms: tuple[str, ...]
    shapes: tuple[Shape, ...]
    case: Callable[[Sequence[str], Shape], Case]

    def __call__(
        self,
        expressions: Sequence[str] = (),
        shapes: Sequence[Shape] = (),
        *,
        rounds: int,
        seconds: float,
        thread_count: int = 1,
        clock: Clock = time.perf_counter,
        progress: Progress = lambda done, most: None,
    ) -> list[Comparison]:
        """One comparison per shape. All cases are made first, then timed, each with an equal share of the seconds.

        Raises:
            GradhomogError: an expression names nothing, or a shape has none of the forms.
        """
        chosen = list(shapes or self.shapes)
        lengths = {form.count(" x ") + 1 for form in self.forms}
        for shape in chosen:
            if len(shape) not in lengths or min(shape) < 1:
                raise OptionError(
                    f"`--shape` must be {' or '.join(self.forms)}, each at least 1; got {'x'.join(map(str, shape))}."
                )
        with threads(thread_count):
            cases = [self.case(expressions, shape) for shape in chosen]
            share = seconds / len(chosen)
            # Inputs may be as large as the memory allows, so each case is dropped once it is timed.
            return [cases.pop(0).compare(rounds, share, thread_count, clock, progress) for _ in chosen]
