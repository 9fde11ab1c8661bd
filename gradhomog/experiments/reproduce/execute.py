"""Compute the comparisons of an experiment, one folder each, and collect them into one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradhomog
from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.execution.monitor import Progress
from gradhomog.experiments.reproduce.experiments import EXPERIMENTS, Part, Settings, parts
from gradhomog.experiments.reproduce.scales import SCALES
from gradhomog.experiments.reproduce.table import Table, collect
from gradhomog.experiments.results import atomic_files
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.training.trainer import make_trainable

DESCRIPTION = "reproduce.json"


@dataclass
class Reproduction:
    """The outcome of an experiment.

    Attributes:
        description: settings and data, the content of `reproduce.json`.
        failures: error messages by comparison and run.
    """

    folder: Path
    table: Table
    description: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def reproduce(
    name: str,
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    progress: Progress = lambda record: None,
    jobs: int = 1,
    executor: str = "local",
) -> Reproduction:
    """Compute every comparison of an experiment that has no result, and return the table of all.

    `out/PART` is the folder of a comparison, with its own report; see `compare`. Results do not depend on `jobs` and
    `executor`.

    Args:
        name: a key of `EXPERIMENTS`.
        out: the output folder.
        resume: continue in an existing folder; it must have the same settings.
        progress: as for `compare`; also called with the record `part` before each comparison.

    Raises:
        ConfigError: names, data or folder are invalid. KeyboardInterrupt: after all runs have written checkpoints.
    """
    planned = parts(name, settings)
    for part in planned:  # before hours of training: learners, networks and data of all parts
        make_trainable(part.config, Run(part.rows[0].learner, "none", part.config.seed_list[0]))
    description = _claim(out, name, settings, planned, resume)
    failures: dict[str, str] = {}
    for index, part in enumerate(planned):
        progress({"event": "part", "name": part.name, "index": index, "of": len(planned)})
        folder = out / part.name
        exists = (folder / "plan.json").exists()
        outcome = compare(part.config, folder, exists, progress, jobs=jobs, executor=executor)
        failures |= {f"{part.name}: {run}": error for run, error in outcome.failures.items()}
    table = collect(name, EXPERIMENTS[name].published, planned, out)
    return Reproduction(out, table, description, failures)


def describe(name: str, settings: Settings) -> dict[str, Any]:
    """The settings of an experiment as JSON: scale, data, and the user's choices."""
    return {
        "experiment": name,
        "contents": EXPERIMENTS[name].summary,
        "scale": settings.scale,
        "scale_summary": SCALES[settings.scale].summary,
        "data": dict(settings.domains),
        "learners": list(settings.learners),
        "targets": list(settings.targets),
        "shots": list(settings.shots),
        "homogenizers": settings.homogenizers,
        "others": settings.others,
        "overrides": list(settings.overrides),
        "version": gradhomog.__version__,
    }


def _claim(out: Path, name: str, settings: Settings, planned: Sequence[Part], resume: bool) -> dict[str, Any]:
    """Write the description of the experiment into its folder, or compare it with the one that is there; return it.

    Raises:
        ConfigError: the folder is in use, has other settings, or cannot be written.
    """
    content = {**describe(name, settings), "parts": {part.name: part.column for part in planned}}
    path = out / DESCRIPTION
    try:
        if not path.exists():
            if out.exists() and any(out.iterdir()):
                raise ConfigError(f"{out} is not empty, and has no {DESCRIPTION}. Choose another --out.")
            out.mkdir(parents=True, exist_ok=True)
            atomic_files.write_bytes(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())
            return content
        if not resume:
            raise ConfigError(f"{out} already has results. Continue with --resume, or choose another --out.")
        existing = json.loads(path.read_bytes())
    except ValueError as cause:
        raise ConfigError(f"{path} is damaged ({cause}). Remove it, then run the command again.") from cause
    except OSError as cause:
        raise ConfigError(f"{out}: cannot be used as output folder: {cause}. Choose another --out.") from cause
    different = [key for key in content if key != "version" and existing.get(key) != content[key]]
    if different:
        key = different[0]
        raise ConfigError(
            f"{out} has other settings: `{key}` is {existing.get(key)!r} there and {content[key]!r} here. Choose "
            "another --out, or repeat the options of that command."
        )
    return content
