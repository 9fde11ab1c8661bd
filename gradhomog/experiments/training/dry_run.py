"""One training step of every method before any run starts: what cannot work together is refused, all of it at once."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.execution.plan import Method, Run
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.results.events import SINGLE
from gradhomog.experiments.training import trainer


def refuse_unworkable(
    config: Config, rows: Sequence[Method], progress: Callable[[Mapping[str, Any]], None] = lambda record: None
) -> None:
    """Take the first step of every pipeline of a comparison on a trainee of its own, which is thrown away.

    What a homogenizer needs of a network, its features or its losses is known only to the homogenizer, and asked for
    only in a step. Writes no file; `progress` is called after each with the record `trial`.

    Raises:
        ConfigError: a first step is refused; names every pipeline of which it is, with the reason.
    """
    failed: dict[str, list[str]] = {}  # pipelines by the reason, which may be that of all
    runs = [Run(row.learner, row.label, text, config.seed_list[0]) for row in rows for text in row.candidates]
    with threads(config.threads):
        for run in runs:
            # Any other exception is no refusal but a defect, which the run tells with its author and traceback.
            with suppress(Exception):
                try:
                    trainee = trainer.trainee(config, run)
                    trainee.step(0, trainer.optimizer(config, trainee), inspect=True)
                except GradhomogError as error:
                    failed.setdefault(str(error), []).append(_named(config, run))
            progress({"event": "trial", "run": run.id, "of": len(runs)})
    if failed:
        raise ConfigError(_message(config, failed))


def _named(config: Config, run: Run) -> str:
    text = SINGLE if run.label == SINGLE else run.homogenizers
    return f"{run.learner} with {text}" if len(config.learners) > 1 else text


def _message(config: Config, failed: Mapping[str, Sequence[str]]) -> str:
    what, instead = ", ".join(config.learners), "another learner, network or domains"
    if config.problem is not None:
        what, instead = f"the problem {config.problem.name}", "another `problem.name`"
    lines = [f"`homogenizers`: these cannot take a first step with {what}, so nothing was started."]
    for why, names in failed.items():
        lines += [f"  {', '.join(names)}", textwrap.indent(why, "    ")]
    return "\n".join([*lines, f"Do as each says, leave them out of `homogenizers`, or choose {instead}."])
