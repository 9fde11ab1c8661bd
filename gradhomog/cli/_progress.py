"""A progress bar on standard error with the numbers that matter; without a terminal, a line per finished run."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm


class Progress:
    """Called with every record of a comparison.

    Attributes:
        started: whether there is a folder with anything in it.
    """

    def __init__(self) -> None:
        self.started = False
        self._bar: Any = None
        self._steps = 0
        self._cosine: dict[str, float] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _made(self, total: int, **more: Any) -> Any:
        return tqdm(total=total, unit="step", dynamic_ncols=True, disable=not sys.stderr.isatty(), **more)

    def __call__(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "trial":
                if self._bar is None:
                    self._bar = self._made(record["of"], desc="trying a step of each", leave=False)
                self._bar.update(1)
            case "plan":
                self.started = True
                if self._bar is not None:
                    self._bar.close()
                self._steps = record["steps"]
                steps = record["steps"]
                self._bar = self._made(record["runs"] * steps, initial=record["finished"] * steps)
            case "step":
                cosines = record["cosines"]
                tasks = len(cosines)
                off = sum(map(sum, cosines)) - sum(cosines[i][i] for i in range(tasks))
                self._cosine[record["run"]] = off / max(tasks * (tasks - 1), 1)
            case "progress":
                self._bar.update(1)
                cosine = self._cosine.get(record["run"], float("nan"))
                self._bar.set_postfix_str(
                    f"{record['label'][:24]} seed {record['seed']} step {record['step']}/{self._steps} "
                    f"loss {record['loss']:.3f} score {record['score']:.3f} cos {cosine:+.2f}",
                    refresh=False,
                )
            case "result":
                scores = [math.nan if score is None else score for score in record["scores"]]
                mean = sum(scores) / len(scores)
                validation = math.nan if record["validation"] is None else record["validation"]
                tqdm.write(
                    f"{record['label']:<28} seed {record['seed']}  {record['metric']} {mean:.4f}  "
                    f"validation {validation:.4f} at step {record['best_step']}  {record['seconds']:.0f} s"
                    f"{'  (candidate)' if record['role'] == 'candidate' else ''}",
                    file=sys.stderr,
                )
            case "failed":
                last = record["error"].strip().splitlines()[-1]
                tqdm.write(f"{record['label']:<28} seed {record['seed']}  failed: {last}", file=sys.stderr)
