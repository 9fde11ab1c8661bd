"""`gradhomog train`: train one learner with one pipeline and one seed, and save the best network as `best.pt`.

Use a run file as for `compare`, in which `learner`, `homogenizers` and `seeds` have exactly one entry each (default:
MAML without homogenizers, seed 0).
"""

from __future__ import annotations

import argparse
from typing import Any

from gradhomog.cli._run_options import add_run_command, execute


def add(commands: Any) -> None:
    add_run_command(commands, "train", "train one learner with one pipeline", __doc__, run, several_runs=False)


def run(args: argparse.Namespace) -> int:
    from gradhomog.errors import ConfigError
    from gradhomog.experiments.config.schema import load

    config = load(args.run_file, args.overrides, defaults={"homogenizers": ["none"], "seeds": 1})
    for key, values in (
        ("learner", config.learners),
        ("homogenizers", [text for entry in config.homogenizers for text in entry.split("|")]),
        ("seeds", config.seed_list),
    ):
        if len(values) != 1:
            raise ConfigError(
                f"`{key}` must have exactly one entry; got {values}. Use `gradhomog compare` for several."
            )
    return execute(args, config, "train")
