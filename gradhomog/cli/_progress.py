"""A progress bar of a comparison on standard error; without a terminal, lines with the share of steps.

The remaining time is estimated from the wall-clock time of finished runs, and omitted before the first one: first steps
and measurements of processor time differ from it by orders of magnitude.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm

from gradhomog.cli._output import duration
from gradhomog.errors import in_one_line

LINE_INTERVAL = 10.0
"""Seconds between two lines if standard error is not a terminal."""


class Progress:
    """Print the progress of a comparison; called with its records, see `compare`.

    Attributes:
        started: True once the output folder has content.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.started = False
        self._clock = clock
        self._terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._steps = self._total = self._jobs = 0
        self._several_learners = False
        self._titles: Mapping[tuple[str, str], str] = {}  # by learner and pipeline, where rows have titles
        self._done: dict[str, int] = {}  # steps by run
        self._at_start = 0  # steps of runs that finished before this call
        self._began: dict[str, tuple[float, int]] = {}  # time and steps of the first record of each run
        self._run_seconds: list[float] = []  # of finished runs
        self._last = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _make_bar(self, total: int, **options: Any) -> Any:
        without_remaining_time = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
        return tqdm(
            total=total, dynamic_ncols=True, disable=not self._terminal, bar_format=without_remaining_time, **options
        )

    def _method_name(self, record: Mapping[str, Any]) -> str:
        if title := self._titles.get((record["learner"], record["homogenizers"])):
            return title
        text = "plain" if record["homogenizers"] == "none" else str(record["homogenizers"])
        return f"{record['learner']}, {text}" if self._several_learners else text

    def __call__(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "comparison":
                if self._bar is not None:
                    self._bar.close()
                self._bar = None
                self._titles = record["titles"]
                self._write(f"{record['index'] + 1}/{record['of']} {record['name']}")
            case "dry_run":
                if self._bar is None:
                    if not self._terminal:
                        print(f"dry run: two steps of each of {record['of']} methods", file=sys.stderr, flush=True)
                    self._bar = self._make_bar(record["of"], desc="dry run: two steps each", leave=False)
                self._bar.update(1)
            case "plan":
                self._plan(record)
            case "progress":
                self._progress(record)
            case "result":
                if record["run"] in self._began:
                    start, step = self._began[record["run"]]
                    self._run_seconds.append((self._clock() - start) * self._steps / max(self._steps - step, 1))
                self._count(record["run"], self._steps)
                scores = [math.nan if score is None else score for score in record["scores"]]
                mean = sum(scores) / len(scores)
                validation = math.nan if record["validation"] is None else record["validation"]
                self._write(
                    f"{self._method_name(record):<28} seed {record['seed']}  {record['metric']} {mean:.4f}  "
                    f"validation {validation:.4f} at step {record['best_step']}  {record['seconds']:.0f} s"
                )
            case "failed":
                self._count(record["run"], self._steps)
                error = in_one_line(record["error"])
                self._write(f"{self._method_name(record):<28} seed {record['seed']}  failed: {error}")

    def _plan(self, record: Mapping[str, Any]) -> None:
        """Begin to count the steps of a comparison; its other records follow."""
        self.started = True
        self._several_learners = len(record["learners"]) > 1
        self._done, self._began, self._run_seconds = {}, {}, []
        if self._bar is not None:
            self._bar.close()
        self._steps, self._total = record["steps"], record["runs"] * record["steps"]
        self._at_start = record["finished"] * self._steps
        self._bar = self._make_bar(self._total, initial=self._at_start)
        self._last = self._clock()
        self._jobs = min(record["jobs"], record["runs"])
        at_a_time = f", {self._jobs} at a time" if self._jobs else ""  # unknown on a cluster
        self._write(f"{record['runs']} runs of {self._steps} steps{at_a_time}")

    def _progress(self, record: Mapping[str, Any]) -> None:
        self._began.setdefault(record["run"], (self._clock(), record["step"]))
        self._count(record["run"], record["step"])
        remaining = self._remaining()
        if "losses" in record:
            losses = [math.nan if value is None else value for value in record["losses"]]
            self._bar.set_postfix_str(
                f"{self._method_name(record)[:36]} seed {record['seed']} step {record['step']}/{self._steps} "
                f"loss {sum(losses) / max(len(losses), 1):.3f}{remaining}",
                refresh=False,
            )
        now, done = self._clock(), sum(self._done.values())
        if not self._terminal and done and now - self._last >= LINE_INTERVAL:
            self._last = now
            share = (self._at_start + done) / self._total
            print(f"{share:4.0%} of all steps{remaining}", file=sys.stderr, flush=True)

    def _remaining(self) -> str:
        """The remaining time as text; empty before a run has finished."""
        if not self._run_seconds:
            return ""
        runs = (self._total - self._at_start - sum(self._done.values())) / self._steps
        at_a_time = self._jobs or max(len(self._began) - len(self._run_seconds), 1)
        seconds = sum(self._run_seconds) / len(self._run_seconds) * runs / at_a_time
        return f", about {duration(seconds)} remaining"

    def _count(self, run: str, steps: int) -> None:
        new = steps - self._done.get(run, 0)
        self._done[run] = steps
        self._bar.update(max(new, 0))

    def _write(self, line: str) -> None:
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()
