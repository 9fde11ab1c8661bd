"""`gradhomog env`: print versions, machine and installed plugins, for a bug report."""

import argparse
import sys
from typing import Any

from gradhomog.cli._output import add_json, print_result
from gradhomog.table import aligned

SUMMARY = "print versions, machine and installed plugins"
add_arguments = add_json


def run(args: argparse.Namespace) -> int:
    from gradhomog.experiments.environment import machine, versions
    from gradhomog.registry import KINDS, installed

    data: dict[str, Any] = {"versions": versions(), "machine": machine(), "interpreter": sys.executable}
    data["plugins"] = {kind: [info.selector for info in installed().list(kind)] for kind in KINDS}
    rows = [*data["versions"].items(), *data["machine"].items(), ("interpreter", data["interpreter"])]
    rows += [(kind, ", ".join(names) or "none") for kind, names in data["plugins"].items()]
    print_result(args, data, "\n".join(aligned([(str(name), str(value)) for name, value in rows])))
    return 0
