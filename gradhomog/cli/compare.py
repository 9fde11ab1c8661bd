"""`gradhomog compare`: train and test homogenizers against the plain learner, and print the table.

Without a run file: MAML on four families of functions, one task of each in every batch; plain, tuned static weights,
PCGrad, reweight and scale_invariant, four seeds each; two minutes on two cores.

Multi-task problems: --set problem.name=glyph_pairs, digit_pairs, regression or landscape. The plain network and tuned
static weights are always in their table.
"""

from __future__ import annotations

import argparse
from typing import Any

from gradhomog.cli._run_options import add_run_command, execute


def add(commands: Any) -> None:
    add_run_command(commands, "compare", "compare homogenizers with the plain learner", __doc__, run)


def run(given: argparse.Namespace) -> int:
    from gradhomog.experiments.config.schema import load

    return execute(given, load(given.run_file, given.overrides).with_baselines(), "compare")
