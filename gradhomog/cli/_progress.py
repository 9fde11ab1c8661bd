"""A progress bar on standard error with the numbers that matter; without a terminal, a line per finished run."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from gradhomog.blame import in_one_line


class Progress:
    """Called with every record of a comparison.

    Attributes:
        started: whether there is a folder with anything in it.
    """

    def __init__(self) -> None:
        self.started = False
        self._bar: Any = None
        self._steps = 0
        self._several_learners = False
        self._cosine: dict[str, float] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _made(self, total: int, **more: Any) -> Any:
        return tqdm(total=total, unit="step", dynamic_ncols=True, disable=not sys.stderr.isatty(), **more)

    def _name(self, record: Mapping[str, Any]) -> str:
        return f"{record['learner']}, {record['label']}" if self._several_learners else str(record["label"])

    def __call__(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "trial":
                if self._bar is None:
                    self._bar = self._made(record["of"], desc="trying a step of each", leave=False)
                self._bar.update(1)
            case "plan":
                self.started = True
                self._several_learners = len(record["learners"]) > 1
                if self._bar is not None:
                    self._bar.close()
                self._steps = record["steps"]
                self._bar = self._made(record["runs"] * self._steps, initial=record["finished"] * self._steps)
            case "step":
                cosines = record["cosines"]
                tasks = len(cosines)
                off = sum(map(sum, cosines)) - sum(cosines[i][i] for i in range(tasks))
                self._cosine[record["run"]] = off / max(tasks * (tasks - 1), 1)
            case "progress":
                self._bar.update(1)
                shown = 36 if self._several_learners else 24
                cosine = self._cosine.get(record["run"], float("nan"))
                self._bar.set_postfix_str(
                    f"{self._name(record)[:shown]} seed {record['seed']} step {record['step']}/{self._steps} "
                    f"loss {record['loss']:.3f} score {record['score']:.3f} cos {cosine:+.2f}",
                    refresh=False,
                )
            case "result":
                scores = [math.nan if score is None else score for score in record["scores"]]
                mean = sum(scores) / len(scores)
                validation = math.nan if record["validation"] is None else record["validation"]
                tqdm.write(
                    f"{self._name(record):<28} seed {record['seed']}  {record['metric']} {mean:.4f}  "
                    f"validation {validation:.4f} at step {record['best_step']}  {record['seconds']:.0f} s"
                    f"{'  (candidate)' if record['role'] == 'candidate' else ''}",
                    file=sys.stderr,
                )
            case "failed":
                error = in_one_line(record["error"])
                tqdm.write(f"{self._name(record):<28} seed {record['seed']}  failed: {error}", file=sys.stderr)
