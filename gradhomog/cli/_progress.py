"""A progress bar of a comparison on standard error; without a terminal, lines with the remaining time."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm

from gradhomog.cli._output import duration
from gradhomog.error_source import in_one_line

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
        self._steps = 0
        self._total = 0
        self._several_learners = False
        self._titles: Mapping[tuple[str, str], str] = {}  # by learner and pipeline, where rows have titles
        self._done: dict[str, int] = {}  # steps by run
        self._at_start = 0  # steps of runs that finished before this call
        self._start = self._last = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _make_bar(self, total: int, **options: Any) -> Any:
        return tqdm(total=total, unit="step", dynamic_ncols=True, disable=not self._terminal, **options)

    def _method_name(self, record: Mapping[str, Any]) -> str:
        if title := self._titles.get((record["learner"], record["homogenizers"])):
            return title
        text = "plain" if record["homogenizers"] == "none" else str(record["homogenizers"])
        return f"{record['learner']}, {text}" if self._several_learners else text

    def __call__(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "part":
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
                self._count(record["run"], self._steps)
                scores = [math.nan if score is None else score for score in record["scores"]]
                mean = sum(scores) / len(scores)
                validation = math.nan if record["validation"] is None else record["validation"]
                self._write(
                    f"{self._method_name(record):<28} seed {record['seed']}  {record['metric']} {mean:.4f}  "
                    f"validation {validation:.4f} at step {record['best_step']}  {record['seconds']:.0f} s"
                )
            case "failed":
                error = in_one_line(record["error"])
                self._write(f"{self._method_name(record):<28} seed {record['seed']}  failed: {error}")

    def _plan(self, record: Mapping[str, Any]) -> None:
        self.started = True
        self._several_learners = len(record["learners"]) > 1
        self._done = {}
        if self._bar is not None:
            self._bar.close()
        self._steps, self._total = record["steps"], record["runs"] * record["steps"]
        self._at_start = record["finished"] * self._steps
        self._bar = self._make_bar(self._total, initial=self._at_start)
        self._start = self._last = self._clock()
        if record["seconds"] is not None:
            at_a_time = min(record["jobs"], record["runs"])
            runs = f"{record['runs']} runs of {self._steps} steps"
            if at_a_time:
                self._write(f"{runs}, {at_a_time} at a time: about {duration(record['seconds'] / at_a_time)}")
            else:  # on a cluster, the number of simultaneous runs is unknown
                self._write(f"{runs}: about {duration(record['seconds'])} of processor time")

    def _progress(self, record: Mapping[str, Any]) -> None:
        self._count(record["run"], record["step"])
        if "losses" in record:
            losses = [math.nan if value is None else value for value in record["losses"]]
            self._bar.set_postfix_str(
                f"{self._method_name(record)[:36]} seed {record['seed']} step {record['step']}/{self._steps} "
                f"loss {sum(losses) / max(len(losses), 1):.3f}",
                refresh=False,
            )
        now, done = self._clock(), sum(self._done.values())
        if not self._terminal and done and now - self._last >= LINE_INTERVAL:
            self._last = now
            remaining = (self._total - self._at_start - done) * (now - self._start) / done
            share = (self._at_start + done) / self._total
            print(f"{share:4.0%} of all steps, about {duration(remaining)} remaining", file=sys.stderr, flush=True)

    def _count(self, run: str, steps: int) -> None:
        new = steps - self._done.get(run, 0)
        self._done[run] = steps
        self._bar.update(max(new, 0))

    def _write(self, line: str) -> None:
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()
