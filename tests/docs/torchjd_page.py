"""Writes the tables of `docs/results/torchjd.md` anew: `python -m tests.docs.torchjd_page`, some minutes long."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchjd.aggregation
from hypothesis.errors import UnsatisfiedAssumption

from gradhomog.rows import Rows, blocks
from gradhomog.testing import CheckResult, checks
from gradhomog.testing.checking import run
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from tests.docs import pages

PAGE = "results/torchjd.md"
COMMAND = "python -m tests.docs.torchjd_page"
BEGIN, END = "<!-- generated: torchjd -->", "<!-- end of what is generated -->"

KEPT = "Kept by all (or `n`):"
NOTHING = "Nothing to keep here, or only reported:"

BASES = {"Aggregator", "GramianWeightedAggregator", "WeightedAggregator"}
CHOSEN: Mapping[str, str] = {
    "Constant": "options={'weights': [1, 2, 3, 4]}",
    "Krum": "options={'n_byzantine': 1}",
    "TrimmedMean": "options={'trim_number': 1}",
}
"""Options of those that cannot do without."""

TAKES: Mapping[str, range] = {"Constant": range(4, 5), "Krum": range(4, 100), "TrimmedMean": range(3, 100)}
"""How many tasks they take with these options, by their documentation; the others, any number."""

NOT_TOLD = re.compile(
    r" The bridge hands its answers on.*|\w+Error: torchjd: \w+ of TorchJD [\d.]+ |, numerical:.*| \(allowed:.*"
)
"""Of a message: what is the same for all, and long matrices."""


@dataclass(frozen=True)
class Found:
    """What a check of an aggregator came to: a mark and, where it broke, what was seen."""

    mark: str
    seen: str = ""


def aggregators() -> list[str]:
    """TorchJD's aggregators by class name."""
    kinds = {name: getattr(torchjd.aggregation, name) for name in torchjd.aggregation.__all__}
    return sorted(n for n, kind in kinds.items() if issubclass(kind, torchjd.aggregation.Aggregator) and n not in BASES)


def text(name: str) -> str:
    """The homogenizer that asks an aggregator, as a pipeline's text has it."""
    return f"torchjd(aggregator='{name}'{', ' + CHOSEN[name] if name in CHOSEN else ''})"


class Subject(HomogenizerSubject):
    """Is passed over by what is drawn for other numbers of tasks than it takes."""

    def __init__(self, name: str) -> None:
        super().__init__(text(name))
        self.takes = TAKES.get(name, range(1, 100))

    def combine(self, rows: Rows, **how: Any) -> Any:
        if len(next(iter(blocks(rows).values()))) not in self.takes:
            raise UnsatisfiedAssumption
        return super().combine(rows, **how)


def found(name: str) -> dict[str, Found]:
    """By check, what it came to for an aggregator."""
    subject = Subject(name)
    return {check.name: judged(name, run(check, subject)) for check in checks("homogenizers")}


def judged(name: str, result: CheckResult) -> Found:
    """✓ kept, ✗ broken, n: shown a number of tasks that it says it does not take, –: nothing to be kept."""
    if result.outcome in ("passed", "held"):
        return Found("✓")
    if result.outcome not in ("failed", "not held"):
        return Found("–")
    shown = re.search(r"raised \w+ for (\d+) task", result.message)
    if result.message.startswith("Unsatisfi") or (shown and int(shown[1]) not in TAKES.get(name, range(1, 100))):
        return Found("n")
    return Found("✗", " ".join(NOT_TOLD.sub("", result.message).split()) + worst(result.example))


def worst(example: Mapping[str, Any]) -> str:
    """Of a direction that conflicts with rows: by how much at worst."""
    if "inner_products" not in example:
        return ""
    rows, direction = torch.tensor(example["jacobian"]), torch.tensor(example["direction"])
    cosines = torch.nn.functional.cosine_similarity(rows.double(), direction.double()[None])
    row = int(cosines.argmin())
    return (
        f": cosine {cosines[row]:.2g}, with rows of norm {rows[row].norm():.2g} and up to {rows.norm(dim=1).max():.2g}"
    )


def page(text: str, results: Mapping[str, Mapping[str, Found]]) -> str:
    """The page with its tables made anew."""
    before, between, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (between and end):
        raise ValueError(f"the page must hold {BEGIN} and {END}, with the tables between them")
    return f"{before}{BEGIN}\n{tables(results)}\n{END}{after}"


def tables(results: Mapping[str, Mapping[str, Found]]) -> str:
    """What is asked of all, what can be claimed, and what was seen where something broke."""
    known = {check.name: check for check in checks("homogenizers")}
    marks = {check: {row[check].mark for row in results.values()} for check in known}
    broken = [check for check in known if "✗" in marks[check]]
    lines = [
        f"With TorchJD {importlib.metadata.version('torchjd')}.",
        "",
        "## Asked of every homogenizer",
        "",
        *_table(results, [check for check in broken if known[check].claim is None]),
        "",
        KEPT,
        _named([check for check in known if "✓" in marks[check] and check not in broken]),
        "",
        NOTHING,
        _named([check for check in known if marks[check] == {"–"}]),
        "",
        "## What a method is",
        "",
        *_table(results, [check for check in broken if known[check].claim is not None]),
        "",
        "## What was seen",
        "",
        "| aggregator | check | what was seen |",
        "|---|---|---|",
    ]
    for name, row in results.items():
        lines += [f"| `{name}` | `{check}` | {_short(row[check].seen)} |" for check in broken if row[check].seen]
    return "\n".join([*lines, ""])


def _table(results: Mapping[str, Mapping[str, Found]], columns: Sequence[str]) -> list[str]:
    lines = [f"| | {' | '.join(f'`{check}`' for check in columns)} |", "|---" * (len(columns) + 1) + "|"]
    return lines + [
        f"| `{name}` | {' | '.join(row[check].mark for check in columns)} |" for name, row in results.items()
    ]


def _named(names: Sequence[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in names) + ".", 128)


def _short(seen: str, limit: int = 150) -> str:
    return (seen if len(seen) <= limit else seen[: limit - 1].rstrip(" ,[") + "…").replace("|", "\\|")


def main() -> None:
    results = {}
    for name in aggregators():
        print(name, file=sys.stderr)
        results[name] = found(name)
    (pages.DOCS / PAGE).write_text(page(pages.text(PAGE), results), encoding="utf-8")


if __name__ == "__main__":
    main()
