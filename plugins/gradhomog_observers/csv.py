"""The observer `csv`: the metrics of a run as a table, one number per line."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradhomog import ObserverSpec, hookimpl
from gradhomog_observers._scalars import scalars


class CSV:
    """Write `metrics.csv` into the folder of the run, with the columns `step`, `name` and `value`.

    Names: `loss/mean`, `cosine/mean`, `loss/<domain>`, `accuracy/<domain>`, `norm/<domain>`, `weight/<domain>`,
    `<homogenizer>/<name>`, `validation/score`, `test/score`, `test/loss`. In pandas:
    `read_csv("metrics.csv").pivot(index="step", columns="name", values="value")`.

    A resumed run keeps the lines up to the step of its checkpoint.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        self.path = folder / "metrics.csv"

    def __call__(self, event: str, record: Mapping[str, Any]) -> None:
        if event == "start":
            self._start_file(record["step"])
        step = record["steps"] if event == "result" else record["step"]
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows((step, name, value) for name, value in scalars(event, record).items())

    def _start_file(self, step: int) -> None:
        kept: list[list[str]] = []
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                kept = [row for row in list(csv.reader(file))[1:] if len(row) == 3 and int(row[0]) <= step]
        with self.path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("step", "name", "value"), *kept])


@hookimpl
def gradhomog_observer() -> ObserverSpec:
    return ObserverSpec(factory=CSV, summary="writes metrics.csv in the folder of the run")
