"""The folder of a comparison: made, found again, and refused if it is of another configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.config.schema import Config, load

ROOT = Path("runs")
RUN_FILE = "run.toml"
LOG = "results.jsonl"
LOCK = ".lock"


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
    if resume and not existing.exists() and not (out / LOG).exists():
        raise ConfigError(f"{out} holds nothing to resume: no {RUN_FILE}. Leave out --resume to start there.")
    if existing.exists():
        _same(config, load(existing), out)
        if (out / LOG).exists() and not resume:
            raise ConfigError(f"{out} already holds results. Add --resume to go on with them, or choose another --out.")
    elif resume and (out / LOG).exists():
        raise ConfigError(f"{out} holds results but no {RUN_FILE}, so they cannot be told to be of this configuration.")
    return out


def prepare(config: Config, out: Path | None, resume: bool, stem: str) -> Path:
    """The folder that `choose` gives, with the resolved configuration in it.

    Raises:
        ConfigError: as `choose`, or it cannot be written.
    """
    out = choose(config, out, resume, stem)
    existing = out / RUN_FILE
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not existing.exists():  # it may be the user's own file, with comments
            existing.write_text(config.to_toml(), encoding="utf-8")
        with (out / LOG).open("a", encoding="utf-8"):
            pass
    except OSError as cause:
        raise ConfigError(f"{out}: the output folder cannot be written: {cause}. Choose another --out.") from cause
    return out


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a folder for one process; the lock ends with the process, however that ends.

    Raises:
        ConfigError: another process writes to the folder.
    """
    try:
        import fcntl
    except ImportError:  # Windows: two comparisons in one folder are not told apart there
        yield
        return
    with (out / LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            raise ConfigError(
                f"another process is writing to {out}. Wait for it, stop it, or choose another --out."
            ) from cause
        yield


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
    ours, theirs = _flat(config.to_dict()), _flat(other.to_dict())
    different = [key for key in ours if ours[key] != theirs.get(key) and key != "workers"]
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
