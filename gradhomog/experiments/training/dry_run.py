"""Dry run: two steps of every method before any run starts, to reject invalid combinations."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments.execution.environment import threads
from gradhomog.experiments.results.runs import Method, Run
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.training import trainer


def dry_run(
    config: Config, rows: Sequence[Method], progress: Callable[[Mapping[str, Any]], None] = lambda record: None
) -> None:
    """Take the first two steps of every pipeline of a comparison, each on a new trainable that is then discarded.

    A homogenizer checks its requirements on the network, its features and its losses only within a step. Writes no
    file. Calls `progress` after each pipeline with the record `dry_run`.

    Raises:
        ConfigError: a step raises an error of gradhomog; lists all such pipelines, with the reasons.
    """
    failures: dict[str, list[str]] = {}  # reason -> pipelines: several pipelines may fail for the same reason
    runs = dict.fromkeys(Run(row.learner, text, config.seed_list[0]) for row in rows for text in row.candidates)
    with threads(config.threads):
        for run in runs:
            # Any other exception is a defect in a plugin. The run itself reports it, with plugin and traceback.
            with suppress(Exception):
                try:
                    trainable = trainer.make_trainable(config, run)
                    optimizer = trainer.make_optimizer(config, trainable)
                    for step in range(2):
                        trainable.step(step, optimizer, inspect=step == 0)
                except GradhomogError as error:
                    failures.setdefault(str(error), []).append(_describe_run(config, run))
            progress({"event": "dry_run", "run": run.id, "of": len(runs)})
    if failures:
        raise ConfigError(_message(config, failures))


def _describe_run(config: Config, run: Run) -> str:
    return f"{run.learner} with {run.homogenizers}" if len(config.learners) > 1 else run.homogenizers


def _message(config: Config, failures: Mapping[str, Sequence[str]]) -> str:
    subject, alternative = ", ".join(config.learners), "another learner, network or domains"
    if config.problem is not None:
        subject, alternative = f"the problem {config.problem['name']}", "another `problem.name`"
    lines = [f"`homogenizers`: the dry run of these with {subject} failed, and nothing was started."]
    for reason, names in failures.items():
        lines += [f"  {', '.join(names)}", textwrap.indent(reason, "    ")]
    return "\n".join([*lines, f"Follow each message, remove these from `homogenizers`, or choose {alternative}."])
