"""`gradhomog train`: train one learner with one pipeline and one seed, and keep the best network in `best.pt`.

Takes the same run file as `compare`; `learner`, `homogenizers` and `seeds` must name one each (by default plain MAML,
seed 0).
"""

from __future__ import annotations

import argparse
from typing import Any

from gradhomog.cli._run_options import add_run_command, execute


def add(commands: Any) -> None:
    add_run_command(commands, "train", "train one learner with one pipeline", __doc__, run)


def run(given: argparse.Namespace) -> int:
    from gradhomog.errors import ConfigError
    from gradhomog.experiments.config.schema import load

    config = load(given.run_file, given.overrides, defaults={"homogenizers": ["none"], "seeds": 1})
    for key, values in (
        ("learner", config.learners),
        ("homogenizers", [text for entry in config.homogenizers for text in entry.split("|")]),
        ("seeds", config.seed_list),
    ):
        if len(values) != 1:
            raise ConfigError(f"`{key}` must name one to train; got {values}. Use `gradhomog compare` for several.")
    return execute(given, config, "train")
