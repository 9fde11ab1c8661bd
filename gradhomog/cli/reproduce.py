"""`gradhomog reproduce EXPERIMENT`: an experiment of a paper as one table, with the paper's numbers.

Experiments of the RotoGBML paper need your copy of its data, and so do the multi-task benchmarks nyuv2, cityscapes,
celeba, qm9 and office-home; `pinn` and `gradstats` (physics-informed networks) need none. Papers are TOML files;
FILE.toml:EXPERIMENT is an experiment of your own.

The table has our number, the paper's number and the difference, with tuned static weights and PCGrad as further
baselines. Benchmarks that are not present are omitted, and the report lists them. Results are kept in one folder per
comparison; `--resume` continues.

  gradhomog reproduce weak --data DIR --scale smoke
  gradhomog reproduce strong --data DIR --scale small --learner MAML --target cub --shots 1 --jobs 4
  gradhomog reproduce ablation --data DIR --domain plantae=flowers.npz --set train.steps=1000
  gradhomog reproduce pinn --target burgers --method Adam --method UPGrad --scale small
  gradhomog reproduce nyuv2 --data DIR --scale paper --set device=cuda
"""

import argparse
from pathlib import Path
from typing import Any

from gradhomog.cli._output import print_failures, print_result
from gradhomog.cli._run_command import add_execution_options, add_jobs, add_overrides, resume_hint

SUMMARY = "compute a table or figure of a paper"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "experiment", metavar="EXPERIMENT",
        help="weak (Table 1), strong (Table 2), ablation (Table 3), beta, temperature, backbone, saliency; "
        "pinn, gradstats; nyuv2, cityscapes, celeba, qm9, office-home; or FILE.toml:EXPERIMENT",
    )  # fmt: skip
    command.add_argument("--data", type=Path, metavar="DIR", help="folder of the data; see `gradhomog data list`")
    command.add_argument(
        "--domain", action="append", default=[], metavar="NAME=PATH", dest="domains",
        help="file or folder of a benchmark, relative to --data or to the working directory; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--scale", default="smoke", metavar="SCALE",
        help="smoke (default; minutes on two cores), small (hours), medium (hours on a GPU), paper (60,000 steps); "
        "pinn: 20, 2,500, 10,000 or 50,000 steps, seconds to minutes a run",
    )  # fmt: skip
    command.add_argument(
        "--learner", action="append", default=[], metavar="NAME", dest="learners",
        help="learner of the rows, such as iMAML or 'maml(first_order=true)'; may be repeated (default: the paper's)",
    )  # fmt: skip
    command.add_argument(
        "--target", action="append", default=[], metavar="NAME", dest="targets",
        help="test benchmark; pinn: helmholtz, burgers, klein_gordon or burgers_config; may be repeated (default: all "
        "of the table that are present)",
    )  # fmt: skip
    command.add_argument(
        "--shots", action="append", default=[], type=int, metavar="N", help="number of shots; may be repeated"
    )
    command.add_argument(
        "--method", action="append", default=[], metavar="NAME", dest="methods",
        help="row of the table; may be repeated (default: all)",
    )  # fmt: skip
    command.add_argument(
        "--without-others", action="store_true",
        help="omit the comparison methods of Tables 1 and 2, such as ProtoNet and RelationNet",
    )  # fmt: skip
    add_overrides(command)
    add_execution_options(command, "runs/reproduce-EXPERIMENT-SCALE")
    add_jobs(command)


def run(args: argparse.Namespace) -> int:
    from gradhomog.cli._progress import Progress
    from gradhomog.experiments.report.page import REPORT
    from gradhomog.experiments.reproduce.execute import reproduce
    from gradhomog.experiments.reproduce.paper_schema import read_experiment
    from gradhomog.experiments.reproduce.report import text_table

    paper, key = read_experiment(args.experiment)
    settings = _settings(args, paper, key)
    out = args.out or Path("runs") / f"reproduce-{key}-{args.scale}"
    with Progress() as progress, resume_hint(progress):
        outcome = reproduce(
            args.experiment, settings, out, resume=args.resume, progress=progress, jobs=args.jobs,
            executor=args.executor,
        )  # fmt: skip
    code = print_failures(outcome.failures)
    facts = {"data": outcome.description["data"], "differences": outcome.description["differences"]}
    data = {"folder": str(out), "failures": outcome.failures, **facts, **outcome.results.to_json(paper)}
    report = f"{out / REPORT}  the report; each comparison has a folder with its own report beside it"
    print_result(args, data, f"{text_table(paper, outcome.results, outcome.description).text()}\n\n{report}")
    return code


def _settings(args: argparse.Namespace, paper: Any, key: str) -> Any:
    """The user's choices, after checking the name of the scale.

    Raises:
        ConfigError: a name is unknown, or data are not found.
    """
    from gradhomog.errors import ConfigError, did_you_mean
    from gradhomog.experiments.reproduce.comparisons import Settings, find_domains, image_size

    if args.scale not in paper.scales:
        hint = did_you_mean(args.scale, paper.scales)
        raise ConfigError(f"unknown scale {args.scale!r}; known: {', '.join(paper.scales)}.{hint}")
    domains: dict[str, str] = {}
    if paper.benchmarks:
        size = image_size(args.experiment, args.scale, args.overrides)
        domains = find_domains(paper.benchmarks, args.data, args.domains, size)
    elif (needed := paper.experiments[key].data) and not args.data:
        raise ConfigError(
            f"`{args.experiment}` needs {needed}: gradhomog reproduce {args.experiment} --data DIR. "
            "`gradhomog data list` prints where it is obtained."
        )
    elif args.domains or (args.data and not needed):
        unused = "--domain" if needed else "--data and --domain"
        raise ConfigError(f"`{args.experiment}` needs no {'domains' if needed else 'data'}; remove {unused}.")
    return Settings(
        domains=domains, scale=args.scale, learners=args.learners, targets=args.targets, shots=args.shots,
        methods=args.methods, others=not args.without_others, overrides=args.overrides,
        folder="" if domains or not args.data else str(args.data.absolute()),
    )  # fmt: skip
