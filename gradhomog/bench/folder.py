"""The folder of a comparison: made, found again, and refused if it is of another configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradhomog.bench.config import Config, load
from gradhomog.errors import ConfigError

ROOT = Path("runs")
RUN_FILE = "run.toml"
LOG = "results.jsonl"


def prepare(config: Config, out: Path | None, resume: bool, stem: str) -> Path:
    """The folder to write into, with the resolved configuration in it.

    Without `out` it is `runs/<stem>`, `runs/<stem>-2`, …: a new one, or with `resume` the latest of this configuration.

    Raises:
        ConfigError: it holds results and `resume` was not asked; it is of another configuration; there is none to
            resume; it cannot be written.
    """
    if out is None:
        out = _latest(config, stem) if resume else _new(stem)
    existing = out / RUN_FILE
    if existing.exists():
        _same(config, load(existing), out)
        if (out / LOG).exists() and not resume:
            raise ConfigError(f"{out} already holds results. Add --resume to go on with them, or choose another --out.")
    elif resume and (out / LOG).exists():
        raise ConfigError(f"{out} holds results but no {RUN_FILE}, so they cannot be told to be of this configuration.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        existing.write_text(config.to_toml(), encoding="utf-8")
        with (out / LOG).open("a", encoding="utf-8"):
            pass
    except OSError as cause:
        raise ConfigError(f"{out}: the output folder cannot be written: {cause}. Choose another --out.") from cause
    return out


def _numbered(stem: str) -> list[Path]:
    """All folders of a stem that exist, in the order in which they were numbered."""
    found: list[Path] = []
    number = 1
    while (path := ROOT / (stem if number == 1 else f"{stem}-{number}")).exists():
        found.append(path)
        number += 1
    return found


def _new(stem: str) -> Path:
    count = len(_numbered(stem))
    return ROOT / (stem if count == 0 else f"{stem}-{count + 1}")


def _latest(config: Config, stem: str) -> Path:
    for path in reversed(_numbered(stem)):
        if (path / RUN_FILE).exists() and load(path / RUN_FILE).digest == config.digest:
            return path
    raise ConfigError(f"no folder {ROOT / stem}* holds a run of this configuration to resume. Name it with --out.")


def _same(config: Config, other: Config, out: Path) -> None:
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
