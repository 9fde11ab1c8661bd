"""The folder of a comparison: `run.toml`, `plan.json`, `runs/` with a folder for each run, and the report."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.config.schema import Config, load
from gradhomog.experiments.results import atomic, events, sealed
from gradhomog.experiments.results.plan import Method, Run
from gradhomog.experiments.results.run_dir import RunDir

ROOT = Path("runs")
RUN_FILE, PLAN = "run.toml", "plan.json"


@dataclass(frozen=True)
class Plan:
    """What a folder holds runs of, for who reads it.

    Attributes:
        methods: the rows of the table, in its order.
        about: of a multi-task problem `tasks`, their names, `notes`, sentences about its data, and `fingerprint`, a
            hash of it; and `held_out`, false where what is tuned is tuned on the very scores of the results.
    """

    config: dict[str, Any]
    digest: str
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    about: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write `plan.json`; leave the one that is there.

        Raises:
            ConfigError: that is of another configuration, or of other data.
        """
        if (folder / PLAN).exists():
            before = Plan.read(folder)
            different = {
                "configuration": (before.digest, self.digest),  # the run file may have been edited
                "data (the file has changed)": (before.about.get("fingerprint"), self.about.get("fingerprint")),
            }
            for what, (theirs, ours) in different.items():
                if theirs != ours:
                    raise ConfigError(
                        f"{folder} holds results of another {what}, which one table must not mix with these. Choose "
                        "another --out."
                    )
            if (theirs := before.config["plugins"]) != self.config["plugins"]:
                changed = sorted({*theirs} ^ {*self.config["plugins"]})
                raise ConfigError(
                    f"{folder} holds results of other plugins, which one table must not mix with these: of "
                    f"{', '.join(changed)} one is there and not here. Choose another --out."
                )
            return
        content = {"version": events.VERSION, **events.plain(asdict(self))}
        content["sha256"] = sealed.content_digest(content)
        atomic.write(folder / PLAN, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """What `write` wrote.

        Raises:
            ConfigError: there is none, or it is damaged or of another version.
        """
        path = folder / PLAN
        try:
            content = json.loads(path.read_bytes())
            digest = content.pop("sha256")
            if content["version"] != events.VERSION:
                raise ConfigError(f"{path}: is of format version {content['version']!r}, not {events.VERSION}.")
            if digest != sealed.content_digest(content):
                raise ValueError("its content is not that of its `sha256`")
            methods = tuple(
                Method(row["learner"], row["label"], tuple(row["candidates"])) for row in content["methods"]
            )
            return cls(content["config"], content["digest"], methods, tuple(content["seeds"]), content["about"])
        except OSError as cause:
            raise ConfigError(
                f"{folder}: no {PLAN} can be read there: {cause.strerror}. Pass a folder that `gradhomog compare` or "
                "`train` wrote."
            ) from cause
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
            if isinstance(cause, ConfigError):
                raise
            raise ConfigError(
                f"{path}: is damaged ({cause}). Remove it, and add --resume to the command that made it."
            ) from cause


def run_dir(folder: Path, run: Run) -> RunDir:
    """The folder of a run within that of a comparison."""
    return RunDir(folder / "runs" / run.id)


def choose(config: Config, out: Path | None, resume: bool, stem: str) -> Path:
    """The folder to write into, which need not exist yet.

    Without `out` it is `runs/<stem>`, `runs/<stem>-2`, …: a new one, or with `resume` the latest of this configuration.

    Raises:
        ConfigError: it holds results and `resume` was not asked; it is of another configuration; there is none to
            resume.
    """
    if out is None:
        out = _latest(config, stem) if resume else _new(stem)
    existing = out / RUN_FILE
    if resume and not existing.exists():
        raise ConfigError(f"{out} holds nothing to resume: no {RUN_FILE}. Leave out --resume to start there.")
    if existing.exists():
        _same(config, load(existing), out)
        if (out / PLAN).exists() and not resume:
            raise ConfigError(f"{out} already holds results. Add --resume to go on with them, or choose another --out.")
    return out


def check_writable(folder: Path) -> None:
    """Before anything takes time.

    Raises:
        ConfigError: the folder cannot be written, or made.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{folder}: the output folder cannot be written: {existing} is a file. Choose another --out.")
    if not os.access(existing, os.W_OK):
        raise ConfigError(
            f"{folder}: the output folder cannot be written: no permission for {existing}. Choose another --out."
        )


def with_pins(config: Config, folder: Path) -> Config:
    """The configuration with the plugins that a folder holds results of, where it holds any and names none itself.

    Raises:
        ConfigError: the folder's plan is damaged.
    """
    if config.plugins or not (folder / PLAN).exists():
        return config
    return dataclasses.replace(config, plugins=Plan.read(folder).config["plugins"])


def prepare(config: Config, out: Path) -> Path:
    """The folder of a comparison, with the resolved configuration in it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / RUN_FILE).exists():  # it may be the user's own file, with comments
            atomic.write(out / RUN_FILE, config.to_toml().encode())
        atomic.remove_leftovers(out)
    except OSError as cause:
        raise ConfigError(f"{out}: the output folder cannot be written: {cause}. Choose another --out.") from cause
    return out


def _numbered(stem: str) -> dict[int, Path]:
    """The folders of a stem that exist, by number."""
    found = {}
    for path in ROOT.glob(f"{stem}*"):
        name = re.fullmatch(rf"{re.escape(stem)}(?:-(\d+))?", path.name)
        if name:
            found[int(name[1] or 1)] = path
    return found


def _new(stem: str) -> Path:
    number = max(_numbered(stem), default=0) + 1
    return ROOT / (stem if number == 1 else f"{stem}-{number}")


def _latest(config: Config, stem: str) -> Path:
    for _, path in sorted(_numbered(stem).items(), reverse=True):
        try:
            same = load(path / RUN_FILE).digest == config.digest
        except ConfigError:  # no run file, or one of another version: not ours to resume
            continue
        if same:
            return path
    raise ConfigError(f"no folder {ROOT / stem}* holds a run of this configuration to resume. Name it with --out.")


def _same(config: Config, other: Config, out: Path) -> None:
    if config.with_baselines() == config:
        other = other.with_baselines()  # a user's own file in the folder may leave to us what every table has
    if config.digest == other.digest:
        return
    ours, theirs = _flat(config.decisive()), _flat(other.decisive())
    different = [key for key in ours if ours[key] != theirs.get(key)]
    first = different[0]
    raise ConfigError(
        f"{out} is of another configuration: `{first}` is {theirs.get(first)!r} there and {ours[first]!r} here"
        f"{f' (and {len(different) - 1} more keys differ)' if len(different) > 1 else ''}. "
        f"Choose another --out, or run that configuration: {out / RUN_FILE}."
    )


def _flat(content: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return flat
