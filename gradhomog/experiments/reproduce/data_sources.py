"""The benchmarks that are present on this machine, and the training and test domains that they give a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradhomog.benchmarks import benchmark
from gradhomog.errors import ConfigError, DataError, did_you_mean, join_errors
from gradhomog.experiments.reproduce.paper_schema import DOMAINS, Experiment, Paper


def find_domains(benchmarks: Sequence[str], data: Path | None, assigned: Sequence[str], size: int) -> dict[str, str]:
    """The text of a domain for each of a paper's benchmarks that is present, in its order.

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
    found = _assigned(benchmarks, data, assigned)
    errors = []
    for name in benchmarks:
        if data is not None and name not in found:
            try:
                path = benchmark(name).find(data, size)
            except DataError as error:  # published folders without file lists
                errors.append(str(error))
                continue
            found |= {} if path is None else {name: path}
    if errors:
        raise DataError(join_errors(errors))
    texts = {name: str(found[name].absolute()) for name in benchmarks if name in found}
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


def target_names(paper: Paper, experiment: Experiment) -> list[str]:
    """The names that `--target` accepts: columns, or the benchmarks of which a column has all that are present."""
    columns = list(dict.fromkeys(column for names in experiment.columns.values() for column in names))
    if not paper.benchmarks or set(columns) <= set(paper.benchmarks):
        return columns
    return [name for name in paper.benchmarks if experiment.measure == "conflict" or name != paper.training_only]


def is_present(paper: Paper, column: str, domains: Mapping[str, str], targets: Sequence[str]) -> bool:
    """True if a column is chosen and its data are present."""
    if not paper.benchmarks:
        return not targets or column in targets
    if column not in paper.benchmarks:  # of all benchmarks that are present
        return bool(domains)
    return column in domains and (not targets or column in targets)


def choose_domains(
    paper: Paper, kind: DOMAINS, column: str, domains: Mapping[str, str], targets: Sequence[str]
) -> tuple[dict[str, Any], frozenset[str]]:
    """The run-file keys of a column's domains, and the benchmarks that the paper's column uses.

    - "same": training, validation and test classes of one benchmark.
    - "leave_one_out": train on all other benchmarks, test on the column's. Each task of a batch comes from another
      benchmark. All classes of `few_classes` are training classes; validation tasks come from the others.
    - "transfer": train on `training_only`, test on all others or on the targets, for pictures of all of them.
    - "together": train on all or on the targets, to compare their gradients; test on those with test classes.
    - "none": no domains.

    Raises:
        ConfigError: too few benchmarks are present.
    """

    def has_classes(names: Sequence[str]) -> list[str]:
        return [domains[name] for name in names if name not in paper.few_classes]

    def trained(names: Sequence[str]) -> list[str]:
        return [domains[name] + '(class_split="train")' * (name in paper.few_classes) for name in names]

    tables: dict[str, Any] = {}
    chosen = [name for name in domains if not targets or name in targets]
    every = frozenset(paper.benchmarks)
    match kind:
        case "none":
            return {}, frozenset()
        case "same":
            tables = {"train": [domains[column]], "test": [domains[column]], "setting": "weak"}
            every = frozenset({column})
        case "leave_one_out":
            others = [name for name in domains if name != column]
            validation = has_classes(others)
            if not validation:
                needed = [name for name in paper.benchmarks if name not in (*paper.few_classes, column)]
                raise _missing(f"the strong problem with target {column} needs at least one of {', '.join(needed)} to "
                               "train on", others)  # fmt: skip
            tables = {"train": trained(others), "validation": validation, "test": [domains[column]]}
        case "transfer":
            others = [name for name in chosen if name != paper.training_only]
            if paper.training_only not in domains or not others:
                raise _missing(f"a transfer needs {paper.training_only} and another benchmark", list(domains))
            test = [domains[name] for name in others]
            tables = {"train": [domains[paper.training_only]], "test": test, "setting": "weak"}
        case "together":
            natural = has_classes(chosen)
            if len(chosen) < 2 or not natural:
                needed = [name for name in paper.benchmarks if name not in paper.few_classes]
                raise _missing("a conflict between domains needs two benchmarks, one of them among "
                               f"{', '.join(needed)}", chosen)  # fmt: skip
            tables = {"train": trained(chosen), "validation": natural, "test": natural}
    return {"domains": {"setting": "strong"} | tables}, every


def _missing(needed: str, found: Sequence[str]) -> ConfigError:
    present = ", ".join(found) or "no other benchmark"
    return ConfigError(f"{needed}; found {present}. Put it into the data folder, or pass --domain NAME=PATH.")


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


def _assigned(benchmarks: Sequence[str], data: Path | None, assigned: Sequence[str]) -> dict[str, Path]:
    found = {}
    for text in assigned:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigError(f"--domain must be NAME=PATH; got {text!r}.")
        if name not in benchmarks:
            hint = did_you_mean(name, benchmarks)
            raise ConfigError(f"--domain: unknown benchmark {name!r}; known: {', '.join(benchmarks)}.{hint}")
        paths = [folder / value for folder in ([data] if data is not None else []) + [Path()]]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            raise ConfigError(f"--domain {text}: there is no file or folder {' or '.join(map(str, paths))}.")
        found[name] = path
    return found
