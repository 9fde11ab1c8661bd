"""`gradhomog bench`: what each homogenizer adds to a step, on your model and machine, as ratios to the plain learner.

Takes the run file of `compare`: one learner per homogenizer (of `a | b` the first) and two plain ones start from the
same network and take their steps in turn on the same batches; ratios are taken within each round.

With --kernel no run file is read: `--kernel rotate` times one update of rotations beside PyTorch's
orthogonal parametrization, `--kernel isi` self-information drop-out on one convolution beside its published form,
`--kernel maml` one meta-step of MAML beside a hand-written loop, TorchOpt's MetaSGD and `higher`, `--kernel combine`
one step on a matrix of gradients beside the least that it can take and TorchJD, `--kernel backward` one step of a
network with several losses beside a hand-written loop and TorchJD.

Close what else runs on the machine: ratios bear with a load that stays the same, not with one that comes and goes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.cli._output import add_json, print_json
from gradhomog.errors import OptionError

if TYPE_CHECKING:
    from gradhomog.experiments.profiling.table import Table

KERNELS = ("rotate", "isi", "maml", "combine", "backward")


def add(commands: Any) -> None:
    command = commands.add_parser(
        "bench", help="what each homogenizer adds to a step", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.set_defaults(run=run)
    command.add_argument("run_file", nargs="?", type=Path, metavar="RUN.toml", help="what is left out has a default")
    command.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="override a key of the run file"
    )
    command.add_argument(
        "--homogenizer", action="append", default=[], metavar="PIPELINE", dest="homogenizers",
        help="time this one instead of the run file's, or the kernel's, list; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--learner", action="append", default=[], metavar="LEARNER", dest="learners",
        help="with --kernel maml: time this one instead of its list; may be repeated",
    )  # fmt: skip
    command.add_argument("--kernel", choices=KERNELS, help="time one kernel beside its peers instead of a learner")
    command.add_argument(
        "--shape", action="append", default=[], type=_shape, metavar="AxBxC", dest="shapes",
        help="of a kernel's input: tasks x queries x features (rotate), images x channels x height x width (isi), "
        "tasks x channels x pixels x filters or, of sinusoids, tasks x hidden units (maml), tasks x params (combine), "
        "tasks x inputs x hidden or tasks x channels x pixels x filters (backward); may be repeated",
    )  # fmt: skip
    command.add_argument("--threads", type=_count(1), metavar="N", help="of PyTorch; by default the run file's, or 1")
    command.add_argument("--rounds", type=_count(3), default=50, metavar="N", help="at most; 50 by default, 3 or more")
    command.add_argument(
        "--seconds", type=_seconds, default=60.0, metavar="S",
        help="stop when they are over, with the rounds that there are, at least 3 (of a kernel: 1); 60 by default",
    )  # fmt: skip
    command.add_argument(
        "--processor-time", action="store_true",
        help="count what this process computes, not what it waits while others do: with one thread, on a busy machine",
    )  # fmt: skip
    add_json(command)


def run(given: argparse.Namespace) -> int:
    # Before torch is imported. Measuring memory, its allocator tells that it has not seen older blocks; nobody asks.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    tables = _kernel(given) if given.kernel else _steps(given)
    if given.processor_time:
        note = "Times are what this process computed: waiting, for others on this machine too, is not in them."
        tables = [dataclasses.replace(table, notes=(*table.notes, note)) for table in tables]
    if given.json:
        from gradhomog.experiments.execution.environment import machine, versions
        from gradhomog.experiments.profiling.table import to_json

        data = {"kernel": given.kernel, "versions": versions(), "machine": machine()}
        print_json({**data, "tables": [to_json(table) for table in tables]})
    else:
        from gradhomog.experiments.profiling.table import render

        print("\n\n".join(render(table) for table in tables))
    failed = [f"{label} failed: {message}" for table in tables for label, message in table.failures.items()]
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


def _steps(given: argparse.Namespace) -> list[Table]:
    import json

    from gradhomog.experiments.config.schema import load
    from gradhomog.experiments.profiling.steps import step_costs

    if given.learners:
        raise OptionError("--learner is for --kernel maml; those of a run file by --set 'learner=[\"maml\"]'.")
    if given.shapes:
        raise OptionError("--shape is for --kernel; a learner's inputs come from the run file's domains and network.")
    overrides = list(given.overrides)
    if given.homogenizers:  # a JSON list of texts is one of TOML, too
        overrides.append(f"homogenizers={json.dumps(given.homogenizers)}")
    if given.threads:
        overrides.append(f"threads={given.threads}")
    config = load(given.run_file, overrides)
    with _Progress() as progress:
        return step_costs(
            config, rounds=given.rounds, seconds=given.seconds, clock=_clock(given), progress=progress
        )  # fmt: skip


def _kernel(given: argparse.Namespace) -> list[Table]:
    from gradhomog.experiments.profiling.backward import backward_costs
    from gradhomog.experiments.profiling.combine import combine_costs
    from gradhomog.experiments.profiling.maml import maml_costs
    from gradhomog.experiments.profiling.rotation import rotation_costs
    from gradhomog.experiments.profiling.self_information import self_information_costs

    if given.run_file or given.overrides:
        raise OptionError("--kernel takes no run file and no --set; use --homogenizer, --shape and --threads.")
    learns = given.kernel == "maml"
    if given.homogenizers if learns else given.learners:
        takes, other = ("--learner", "--homogenizer") if learns else ("--homogenizer", "--learner")
        raise OptionError(f"--kernel {given.kernel} takes {takes}, no {other}.")
    costs = {
        "rotate": rotation_costs, "isi": self_information_costs, "maml": maml_costs, "combine": combine_costs,
        "backward": backward_costs,
    }[given.kernel]  # fmt: skip
    with _Progress() as progress:
        return costs(
            given.learners if learns else given.homogenizers, given.shapes, rounds=given.rounds, seconds=given.seconds,
            thread_count=given.threads or 1, clock=_clock(given), progress=progress,
        )  # fmt: skip


def _clock(given: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if given.processor_time else time.perf_counter


class _Progress:
    """A bar on standard error, one per table, if that is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, most: int) -> None:
        from tqdm import tqdm

        if self._bar is None or done < self._bar.n:
            self.__exit__()
            self._bar = tqdm(total=most, unit="round", dynamic_ncols=True, disable=not sys.stderr.isatty())
        self._bar.update(done - self._bar.n)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers with x between them; got {text!r}") from None


def _count(least: int) -> Any:
    def count(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= 1_000_000:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}; got {text!r}")
        return int(text)

    return count


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {text!r}")
    return value
