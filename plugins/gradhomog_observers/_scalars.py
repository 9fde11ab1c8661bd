"""Named numbers of a record, for tools that draw one curve per name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def scalars(event: str, record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by name; NaN for what is not finite.

    Of a step: `loss/mean` over tasks and `cosine/mean` over pairs of different rows; then `loss/<domain>`,
    `accuracy/<domain>`, `norm/<domain>` and `weight/<domain>`, means over the domain's tasks of this step, or the task
    of a multi-task problem; and `<homogenizer>/<name>` for what homogenizers measure. Of a validation
    `validation/score`, of a result `test/score` and `test/loss`. Other events have none.
    """
    if event == "step":
        return _step(record)
    if event == "validation":
        return {"validation/score": _number(record["score"])}
    if event == "result":
        return {"test/score": _mean(record["scores"]), "test/loss": _mean(record["losses"])}
    return {}


def _step(record: Mapping[str, Any]) -> dict[str, float]:
    every = record["domains"]
    took_part = [every[task] for task in record["tasks"]]
    found = {"loss/mean": _mean(record["losses"])}
    if len(took_part) > 1:
        cosines = record["cosines"]
        found["cosine/mean"] = _mean(value for i, row in enumerate(cosines) for value in row[:i])
    for name, values, domains in (
        ("loss", record["losses"], every),
        ("accuracy", record["accuracies"], every),
        ("norm", record["norms"], took_part),
        ("weight", record["weights"], took_part),
    ):
        for domain in dict.fromkeys(domains if values else ()):
            found[f"{name}/{domain}"] = _mean(v for v, own in zip(values, domains, strict=True) if own == domain)
    for homogenizer, measured in record["measured"].items():
        for name, value in measured.items():
            found[f"{homogenizer}/{name}"] = _mean(value) if isinstance(value, list) else _number(value)
    return found


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Iterable[float | None]) -> float:
    numbers = [_number(value) for value in values]
    return sum(numbers) / len(numbers) if numbers else math.nan
