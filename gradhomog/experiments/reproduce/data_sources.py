"""The benchmarks that are present on this machine: files of a data folder, and files that the user assigns by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradhomog.benchmarks import benchmark
from gradhomog.errors import ConfigError, DataError, did_you_mean, join_errors
from gradhomog.experiments.reproduce.protocol import NAMES


def find_domains(data: Path | None, assigned: Sequence[str], size: int) -> dict[str, str]:
    """The text of a domain for each benchmark that is present, in the order of `NAMES`.

    Args:
        data: folder of the data; see `gradhomog data list` for the names within it.
        assigned: `NAME=PATH`: a benchmark, and a file or folder; relative to `data`, or else to the working directory.
        size: side of the images in pixels, for files that exist in several sizes.

    Raises:
        ConfigError: a name is unknown, or a path does not exist. DataError: a benchmark is present in its published
            folders only, without file lists; the message contains the command that writes them.
    """
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data must be an existing folder; got {data}.")
    found = dict(_assigned(data, assigned))
    errors = []
    for name in NAMES:
        if data is not None and name not in found:
            try:
                path = benchmark(name).find(data, size)
            except DataError as error:  # published folders without file lists
                errors.append(str(error))
                continue
            found |= {} if path is None else {name: path}
    if errors:
        raise DataError(join_errors(errors))
    texts = {name: str(found[name].absolute()) for name in NAMES if name in found}
    _check_paths(texts)
    return texts


def find_differences(domains: Mapping[str, str]) -> dict[str, str]:
    """Differences of the data from the published benchmarks, such as "100 of 196 classes", by name.

    Args:
        domains: as returned by `find_domains`.

    Raises:
        DataError: a file or folder cannot be used.
    """
    counted = {name: benchmark(name).count(Path(text)) for name, text in domains.items()}
    return {
        name: "other data: " * (result.status == "other data") + "; ".join(result.differences)
        for name, result in counted.items()
        if result.status != "complete"
    }


def _check_paths(texts: Mapping[str, str]) -> None:
    """Raise ConfigError if two benchmarks are one file, which would be trained on and tested, or a path has options."""
    names: dict[Path, str] = {}
    for name, text in texts.items():
        path = Path(text).resolve()
        if path in names:
            raise ConfigError(f"{names[path]} and {name} are the same file, {path}. Each benchmark needs its own data.")
        names[path] = name
        if "(" in text:
            raise ConfigError(f"{text}: the path contains a parenthesis, which begins options. Move or link the data.")


def _assigned(data: Path | None, assigned: Sequence[str]) -> Mapping[str, Path]:
    found = {}
    for text in assigned:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigError(f"--domain must be NAME=PATH; got {text!r}.")
        if name not in NAMES:
            raise ConfigError(
                f"--domain: unknown benchmark {name!r}; known: {', '.join(NAMES)}.{did_you_mean(name, NAMES)}"
            )
        paths = [folder / value for folder in ([data] if data is not None else []) + [Path()]]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            raise ConfigError(f"--domain {text}: there is no file or folder {' or '.join(map(str, paths))}.")
        found[name] = path
    return found
