"""Validate that the results of a table have the same test tasks, and one result for each method and seed."""

from __future__ import annotations

from collections.abc import Sequence

from gradhomog.errors import ConfigError
from gradhomog.experiments.results.events import Record


def check_consistency(results: Sequence[Record]) -> None:
    """Raise an error unless all results have the same test tasks, and each method and seed has one result.

    Raises:
        ConfigError: two runs have the same method and seed, or different test tasks; the message names both runs.
    """
    run_names: dict[tuple[str, str, int], str] = {}
    for record in results:
        learner, label, seed = key = (record["learner"], record["label"], record["seed"])
        if run_names.setdefault(key, record["run"]) != record["run"]:
            raise ConfigError(
                f"runs {run_names[key]!r} and {record['run']!r} are both of method {label!r} of {learner} with seed "
                f"{seed}. Repeat the comparison in an empty folder."
            )
        for name in ("metric", "domains"):
            if record[name] != results[0][name] or len(record["scores"]) != len(record["domains"]):
                raise ConfigError(
                    f"runs {results[0]['run']!r} and {record['run']!r} were not tested on the same tasks: `{name}` "
                    f"differs, or some tasks have no score ({len(results[0]['scores'])} and {len(record['scores'])} "
                    "scores). Repeat the comparison in an empty folder."
                )
        if not record["scores"]:
            raise ConfigError(f"run {record['run']!r} has no `scores`; expected one per test task. Repeat this run.")
