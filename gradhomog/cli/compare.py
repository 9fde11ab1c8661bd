"""`gradhomog compare`: train and test homogenizers, compare them with the plain learner, and print a table.

The default comparison (without a run file) takes two minutes on two cores: MAML on four families of functions, with one
task of each family per batch, and four seeds. Methods: plain, tuned static weights, PCGrad, reweight, scale_invariant.

Multi-task problems: --set problem.name=NAME, with a name of `gradhomog list problems`. Their table always includes the
plain learner and tuned static weights.
"""

import argparse

from gradhomog.cli._run_command import add_jobs, add_run_options, execute

SUMMARY = "compare homogenizers with the plain learner"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_run_options(command)
    add_jobs(command)
    command.add_argument(
        "--misscale", action="store_true",
        help="also with the first task's loss times 0.01 and 100: how well does each method tolerate wrong weights?",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from gradhomog.experiments.run_file.schema import load

    config = load(args.run_file, args.overrides).with_baselines()
    if args.misscale:
        from gradhomog.experiments.execution.methods import with_misscaled_losses

        config = with_misscaled_losses(config)
    return execute(args, config, "compare")
