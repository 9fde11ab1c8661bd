"""Validate that results belong in one table: the same test, and one result for each method and seed."""

from __future__ import annotations

from collections.abc import Sequence

from gradhomog.errors import ConfigError
from gradhomog.experiments.results.events import Record


def check(results: Sequence[Record]) -> None:
    """Raise unless all results have the same test, and each method and seed has one result.

    Raises:
        ConfigError: names two runs of the same method and seed, or of different test tasks.
    """
    places: dict[tuple[str, str, int], str] = {}
    for record in results:
        place = (record["learner"], record["label"], record["seed"])
        if places.setdefault(place, record["run"]) != record["run"]:
            raise ConfigError(
                f"runs {places[place]!r} and {record['run']!r} both claim to be {place[1]!r} of {place[0]} with seed "
                f"{place[2]}. Start the comparison anew in an empty folder."
            )
        for name in ("metric", "domains"):
            if record[name] != results[0][name] or len(record["scores"]) != len(record["domains"]):
                raise ConfigError(
                    f"runs {results[0]['run']!r} and {record['run']!r} were not tested on the same tasks: `{name}` "
                    f"differs or not every task has a score ({len(results[0]['scores'])} and {len(record['scores'])} "
                    "scores). Start the comparison anew in an empty folder."
                )
        if not record["scores"]:
            raise ConfigError(f"run {record['run']!r} has no `scores`: expected one per test task. Run it again.")
