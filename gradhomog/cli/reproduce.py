"""`gradhomog reproduce EXPERIMENT`: an experiment of a paper as one table, with the paper's numbers.

Experiments of the RotoGBML paper need your copy of its data; `pinn` (physics-informed networks) needs none.

The table has our number, the paper's number and the difference, with tuned static weights and PCGrad as further
baselines. Benchmarks that are not present are omitted, and the report lists them. Results are kept in one folder per
comparison; `--resume` continues.

  gradhomog reproduce weak --data DIR --scale smoke
  gradhomog reproduce strong --data DIR --scale small --learner MAML --target cub --shots 1 --jobs 4
  gradhomog reproduce ablation --data DIR --domain plantae=flowers.npz --set train.steps=1000
  gradhomog reproduce pinn --target burgers --method Adam --method UPGrad --scale small
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradhomog.cli._output import print_json
from gradhomog.cli._run_options import add_execution_options, resume_hint


def add(commands: Any) -> None:
    command = commands.add_parser(
        "reproduce", help="compute a table or figure of a paper", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.set_defaults(run=run)
    command.add_argument(
        "experiment", metavar="EXPERIMENT",
        help="weak (Table 1), strong (Table 2), ablation (Table 3), beta, temperature, backbone, saliency, conflict; "
        "or pinn",
    )  # fmt: skip
    command.add_argument("--data", type=Path, metavar="DIR", help="folder of the benchmarks; see `gradhomog data list`")
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
        help="pinn: row of the table; may be repeated (default: all)",
    )  # fmt: skip
    command.add_argument(
        "--rotogbml", default="", metavar="PIPELINE", help="pipeline of the rows RotoGBML (default: the paper's)"
    )
    command.add_argument(
        "--without-others",
        action="store_true",
        help="omit the comparison methods of Tables 1 and 2, such as ProtoNet and RelationNet",
    )
    command.add_argument("--batches", type=int, metavar="N", help="conflict: number of measured batches (default: 200)")
    command.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", dest="overrides",
        help="override a key of the run files; may be repeated",
    )  # fmt: skip
    add_execution_options(
        command, several_runs=True, resume_help="continue an interrupted experiment",
        default_out="runs/reproduce-EXPERIMENT-SCALE",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from gradhomog.cli._progress import Progress
    from gradhomog.experiments import reproduce
    from gradhomog.experiments.reproduce import report
    from gradhomog.experiments.reproduce.table import to_json

    if args.experiment == "pinn":
        return _run_pinn(args)
    settings = _settings(args)
    if args.experiment == "conflict":
        return _run_conflict(args, settings)
    out = args.out or Path("runs") / f"reproduce-{args.experiment}-{args.scale}"
    with Progress() as progress, resume_hint(progress):
        outcome = reproduce.reproduce(
            args.experiment, settings, out, resume=args.resume, progress=progress, jobs=args.jobs,
            executor=args.executor,
        )  # fmt: skip
    facts = {key: outcome.description[key] for key in ("data", "differences")}
    content = (
        facts | to_json(outcome.table) if args.json else report.text_table(outcome.table, outcome.description).text()
    )
    return _print_outcome(content, out, outcome.failures)


def _run_pinn(args: argparse.Namespace) -> int:
    from gradhomog.cli._progress import Progress
    from gradhomog.experiments.reproduce import pinn
    from gradhomog.experiments.reproduce.pinn.report import text_table
    from gradhomog.experiments.reproduce.pinn.table import to_json

    _check_pinn_options(args)
    _check_name("scale", args.scale, pinn.SCALES)
    settings = pinn.PinnSettings(args.scale, args.targets, args.methods, args.overrides)
    out = args.out or Path("runs") / f"reproduce-pinn-{args.scale}"
    with Progress() as progress, resume_hint(progress):
        outcome = pinn.reproduce_pinn(
            settings, out, resume=args.resume, progress=progress, jobs=args.jobs, executor=args.executor
        )
    content = to_json(outcome.table) if args.json else text_table(outcome.table, outcome.description).text()
    return _print_outcome(content, out, outcome.failures)


def _print_outcome(content: str | dict[str, Any], out: Path, failures: dict[str, str]) -> int:
    """Print the table, as text or JSON, and the comparisons that failed; return the exit status."""
    import sys

    from gradhomog.experiments.reproduce.page import REPORT

    for name, error in failures.items():
        print(f"{name} failed: {error}", file=sys.stderr)
    if isinstance(content, str):
        print(content)
        print(f"\n{out / REPORT}  the report; each comparison has a folder with its own report beside it")
    else:
        print_json({"folder": str(out), "failures": failures, **content})
    return 1 if failures else 0


def _check_pinn_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that have no effect: the problems need no data and have no learner."""
    from gradhomog.errors import ConfigError

    unsupported = {
        "--data": args.data, "--domain": args.domains, "--learner": args.learners, "--shots": args.shots,
        "--rotogbml": args.rotogbml, "--without-others": args.without_others, "--batches": args.batches is not None,
    }  # fmt: skip
    if named := [name for name, given in unsupported.items() if given]:
        raise ConfigError(f"`pinn` needs no data and has no learner; remove {', '.join(named)}.")


def _check_name(word: str, value: str, known: Iterable[str]) -> None:
    from gradhomog.errors import ConfigError, did_you_mean

    if value not in known:
        raise ConfigError(f"unknown {word} {value!r}; known: {', '.join(known)}.{did_you_mean(value, known)}")


def _run_conflict(args: argparse.Namespace, settings: Any) -> int:
    import sys
    from collections.abc import Mapping

    from tqdm import tqdm

    from gradhomog.experiments.reproduce import conflict_report, describe
    from gradhomog.experiments.reproduce.conflict import RESULTS, measure_conflict
    from gradhomog.experiments.reproduce.experiments import conflict_run
    from gradhomog.experiments.reproduce.report import scale_notes

    _check_conflict_options(args)
    config, pipeline = conflict_run(settings)
    out = args.out or Path("runs") / f"reproduce-conflict-{args.scale}"
    batches = 200 if args.batches is None else args.batches
    steps = sorted({0, config.train.steps // 2, config.train.steps})
    if (out / RESULTS).exists() and not args.resume:
        from gradhomog.errors import ConfigError

        raise ConfigError(f"{out} already has results. Continue with --resume, or choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    with tqdm(unit="batch", file=sys.stderr, disable=not sys.stderr.isatty()) as bar:

        def progress(record: Mapping[str, Any]) -> None:
            if record["event"] != "point":
                bar.set_postfix_str(f"{record['event']} {record.get('batch', record['step'])} of {record['of']}")
                bar.update()

        points = measure_conflict(config, steps, batches, pipeline, folder=out, progress=progress)
    remarks = [*scale_notes(describe("conflict", settings)), f"Learner: {config.learner}. Homogenizers: {pipeline}."]
    page = conflict_report.write_page(points, out, remarks)
    if args.json:
        print_json({"folder": str(out), "points": [point.record() for point in points]})
    else:
        print(conflict_report.render(points, remarks))
        print(f"\n{page}  the report")
    return 0


def _check_conflict_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that have no effect: the experiment is one training in one process."""
    from gradhomog.errors import ConfigError

    unsupported = {
        "--jobs": args.jobs, "--executor": args.executor != "local", "--without-others": args.without_others,
        "a second --learner": len(args.learners) > 1, "a second --shots": len(args.shots) > 1,
    }  # fmt: skip
    if named := [name for name, given in unsupported.items() if given]:
        raise ConfigError(f"`conflict` is one training in one process; remove {', '.join(named)}.")


def _settings(args: argparse.Namespace) -> Any:
    """The experiment's settings, after checking the names of experiment and scale.

    Raises:
        ConfigError: a name is unknown.
    """
    from gradhomog.errors import ConfigError
    from gradhomog.experiments import reproduce

    _check_name("experiment", args.experiment, (*reproduce.EXPERIMENTS, "conflict", "pinn"))
    _check_name("scale", args.scale, reproduce.SCALES)
    if args.methods:
        raise ConfigError(f"`--method` selects rows of `pinn`; `{args.experiment}` has none of them. Remove it.")
    size = reproduce.image_size(args.experiment, args.scale, args.overrides)
    return reproduce.Settings(
        domains=reproduce.find_domains(args.data, args.domains, size), scale=args.scale, learners=args.learners,
        targets=args.targets, shots=args.shots, rotogbml=args.rotogbml, others=not args.without_others,
        overrides=args.overrides,
    )  # fmt: skip
