"""`gradhomog report DIR`: recreate the table, the figures and the HTML report from the results in a folder."""

import argparse
from pathlib import Path

from gradhomog.cli._output import add_json, print_result

SUMMARY = "recreate the report of a comparison"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=Path, metavar="DIR", help="output folder of `compare` or `train`")
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from gradhomog.experiments.analysis.summary import to_json
    from gradhomog.experiments.report.page import write_report
    from gradhomog.experiments.report.tables import score_table

    summary = write_report(args.folder)
    text = f"{score_table(summary).text()}\n\n{args.folder / 'report.html'}"
    print_result(args, to_json(summary), text)
    return 0
