"""`gradhomog report DIR`: make table, figures and HTML report anew from the results in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gradhomog.cli._output import add_json, print_json


def add(commands: Any) -> None:
    command = commands.add_parser("report", help="report on the results in a folder", description=__doc__)
    command.add_argument("folder", type=Path, metavar="DIR", help="the output folder of `compare` or `train`")
    add_json(command)
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from gradhomog.experiments.analysis.summary import to_json
    from gradhomog.experiments.report.page import write_report
    from gradhomog.experiments.report.tables import render_table

    summary = write_report(given.folder)
    if given.json:
        print_json(to_json(summary))
    else:
        print(render_table(summary))
        print(f"\n{given.folder / 'report.html'}")
    return 0
