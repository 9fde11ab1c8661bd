"""Scalar metrics of a record by name, for tools that draw one curve per name."""

import math
from collections.abc import Iterable, Mapping
from typing import Any


def scalars(event: str, record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record by name; NaN for non-finite numbers.

    * step: `loss/mean` (over tasks) and `cosine/mean` (over pairs of different rows); `loss/<domain>`,
      `accuracy/<domain>`, `norm/<domain>` and `weight/<domain>` (means over the tasks of the domain in this step; the
      domains of a multi-task problem are its tasks); `<homogenizer>/<name>` (measurements of homogenizers)
    * validation: `validation/score`
    * result: `test/score` and `test/loss`
    * other events: none
    """
    if event == "step":
        return _step(record)
    if event == "validation":
        return {"validation/score": _number(record["score"])}
    if event == "result":
        return {"test/score": _mean(record["scores"]), "test/loss": _mean(record["losses"])}
    return {}


def _step(record: Mapping[str, Any]) -> dict[str, float]:
    domains = record["names"]
    numbers = {"loss/mean": _mean(record["losses"])}
    if len(domains) > 1:
        cosines = record["cosines"]
        numbers["cosine/mean"] = _mean(value for i, row in enumerate(cosines) for value in row[:i])
    columns = {"loss": "losses", "accuracy": "accuracies", "norm": "norms", "weight": "weights"}
    for name, column in columns.items():
        values = record[column]
        for domain in dict.fromkeys(domains if values else ()):
            numbers[f"{name}/{domain}"] = _mean(v for v, other in zip(values, domains, strict=True) if other == domain)
    for homogenizer, measured in record["measured"].items():
        for name, value in measured.items():
            numbers[f"{homogenizer}/{name}"] = _mean(value) if isinstance(value, list) else _number(value)
    return numbers


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Iterable[float | None]) -> float:
    numbers = [_number(value) for value in values]
    return sum(numbers) / len(numbers) if numbers else math.nan
