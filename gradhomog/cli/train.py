"""`gradhomog train`: train one learner with one pipeline and one seed, and save the best network as `best.pt`.

Use a run file as for `compare`, in which `learner`, `homogenizers` and `seeds` have exactly one entry each (default:
MAML without homogenizers, seed 0).

On several ranks, each of which computes the rows of a part of the tasks of every batch:

  torchrun --nproc-per-node=4 --max-restarts=3 -m gradhomog train RUN.toml

If a rank dies, torchrun starts all ranks again, and the run continues from its checkpoint.
"""

import argparse
import os

from gradhomog.cli._run_command import add_run_options, execute

SUMMARY = "train one learner with one pipeline"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_run_options(command)
    command.set_defaults(jobs=0)


def run(args: argparse.Namespace) -> int:
    from gradhomog.errors import ConfigError
    from gradhomog.experiments.run_file.schema import load

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
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        if int(os.environ["RANK"]) > 0:
            from gradhomog.experiments.execution.executors.ranks import follow

            follow(config.device)
            return 0
        args.executor = "ranks"
        if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0:
            from gradhomog.experiments.results.comparison_dir import can_be_resumed

            args.resume = can_be_resumed(config, args.out, "train")
    return execute(args, config, "train")
