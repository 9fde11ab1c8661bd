"""A benchmark: compare implementations of one operation, including other libraries, on inputs of several shapes."""

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
    """The workloads of an operation for each shape of its inputs.

    Attributes:
        name: name of its module in `tests/benchmarks`.
        kind: kind of the plugins that it times.
        forms: meanings of a shape, such as `tasks x queries x features`; each form has a different number of sizes.
        shapes: the default shapes.
        case: creates the case of a shape, for expressions of homogenizers or learners; empty for the default list.
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
        progress: Progress = lambda done, total: None,
    ) -> list[Comparison]:
        """One comparison per shape. All cases are created first, then timed, each with an equal share of `seconds`.

        Raises:
            GradhomogError: an expression is invalid, or a shape matches none of the forms.
        """
        selected = list(shapes or self.shapes)
        lengths = {form.count(" x ") + 1 for form in self.forms}
        for shape in selected:
            if len(shape) not in lengths or min(shape) < 1:
                raise OptionError(
                    f"`--shape` must be {' or '.join(self.forms)}, each at least 1; got {'x'.join(map(str, shape))}."
                )
        with threads(thread_count):
            cases = [self.case(expressions, shape) for shape in selected]
            share = seconds / len(selected)
            # Inputs may need most of the memory, so each case is deleted after it is timed.
            return [cases.pop(0).compare(rounds, share, thread_count, clock, progress) for _ in selected]
