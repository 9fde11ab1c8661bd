"""A benchmark: implementations of one operation, including other libraries, on inputs of several shapes.

Its command is `python -m tests.benchmarks.NAME`, from the root of the repository.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradhomog.cli._output import count_bar, print_json
from gradhomog.cli.profile import add_timing_options, clock
from gradhomog.errors import GradhomogError, OptionError
from gradhomog.experiments.environment import machine, versions
from gradhomog.experiments.profiling.harness import Comparison, TimingTable, measure_all

Shape = Sequence[int]


@dataclass(frozen=True)
class Benchmark:
    """The implementations of an operation for each shape of its inputs.

    Attributes:
        name: name of its module in `tests/benchmarks`.
        forms: creates the inputs from the sizes of a shape, by their meanings, such as `tasks x queries x features`;
            each form has a different number of sizes.
        shapes: the default shapes.
        compare: the comparison on such inputs, for expressions of homogenizers or learners; empty for the default list.
        kind: kind of the plugins that it times: homogenizer or learner.
    """

    name: str
    forms: Mapping[str, Callable[..., Any]]
    shapes: Sequence[Shape]
    compare: Callable[[Sequence[str], Any], Comparison]
    kind: str = "homogenizer"

    def inputs(self, shape: Shape) -> Any:
        """The inputs of a shape.

        Raises:
            OptionError: the shape matches none of the forms.
        """
        by_length = {form.count(" x ") + 1: create for form, create in self.forms.items()}
        if len(shape) not in by_length or min(shape) < 1:
            raise OptionError(
                f"`--shape` must be {' or '.join(self.forms)}, each at least 1; got {'x'.join(map(str, shape))}."
            )
        return by_length[len(shape)](*shape)

    def __call__(
        self, expressions: Sequence[str] = (), shapes: Sequence[Shape] = (), **budget: Any
    ) -> list[TimingTable]:
        """One table per shape; all comparisons are created before one is timed.

        Args:
            budget: arguments of `measure_all`.

        Raises:
            GradhomogError: an expression is invalid, or a shape matches none of the forms.
        """
        comparisons = [self.compare(expressions, self.inputs(shape)) for shape in shapes or self.shapes]
        return measure_all(comparisons, **budget)

    def main(self, description: str | None, arguments: Sequence[str] | None = None) -> int:
        """Run the command, print Markdown or JSON; the exit code is 1 for failures, 2 for invalid input."""
        program = f"python -m tests.benchmarks.{self.name}"
        words = list(sys.argv[1:] if arguments is None else arguments)
        args = self._parser(program, description).parse_args(words)
        try:
            with count_bar("round") as progress:
                tables = self(
                    args.expressions, args.shapes, rounds=args.rounds, seconds=args.seconds,
                    thread_count=args.threads or 1, clock=clock(args), progress=progress,
                )  # fmt: skip
        except GradhomogError as error:
            print(f"{program}: {error}", file=sys.stderr)
            return 2
        if args.json:
            found = [table.record() for table in tables]
            print_json({"benchmark": self.name, "versions": versions(), "machine": machine(), "tables": found})
        else:
            environment = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
            command = f"```console\n$ {program} {shlex.join(words)}\n```"
            print("\n\n".join([command, f"{environment}.", *map(markdown, tables)]))
        return 1 if any(table.failures for table in tables) else 0

    def _parser(self, program: str, description: str | None) -> argparse.ArgumentParser:
        command = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
        command.add_argument(
            f"--{self.kind}", action="append", default=[], metavar=self.kind.upper(), dest="expressions",
            help="time this one instead of the default list; may be repeated",
        )  # fmt: skip
        command.add_argument(
            "--shape", action="append", default=[], type=_parse_shape, metavar="AxB", dest="shapes",
            help=f"shape of the inputs: {' or '.join(self.forms)}; may be repeated",
        )  # fmt: skip
        add_timing_options(command)
        return command


def markdown(found: TimingTable) -> str:
    """A section with title, table and notes."""
    table = found.table()
    return "\n".join([f"## {found.title}", "", table.markdown(), "", *(f"- {note}" for note in table.notes)])


def _parse_shape(text: str) -> tuple[int, ...]:
    """`4x75x64` as numbers."""
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers separated by x; got {text!r}") from None
