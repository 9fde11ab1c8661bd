"""`gradhomog compare`: train and test homogenizers, compare them with the plain learner, and print a table.

The default comparison (without a run file) takes two minutes on two cores: MAML on four families of functions, with one
task of each family per batch, and four seeds. Methods: plain, tuned static weights, PCGrad, reweight, scale_invariant.

Multi-task problems: --set problem.name=NAME, with glyph_pairs, digit_pairs, regression, landscape, or a differential
equation: helmholtz, burgers, klein_gordon. Their table always includes the plain learner and tuned static weights.
"""

from __future__ import annotations

import argparse
from typing import Any

from gradhomog.cli._run_command import add_run_command, execute


def add(commands: Any) -> None:
    add_run_command(commands, "compare", "compare homogenizers with the plain learner", __doc__, run, several_runs=True)


def run(args: argparse.Namespace) -> int:
    from gradhomog.experiments.run_file.schema import load

    return execute(args, load(args.run_file, args.overrides).with_baselines(), "compare")
