"""An experiment as a list of comparisons, one for each column, number of shots, learner and group of rows; its data."""

import hashlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

from gradhomog.errors import ConfigError, DataError, did_you_mean, join_errors
from gradhomog.experiments.reproduce.paper_schema import DOMAINS, Experiment, Paper, Row, Scale, read_experiment
from gradhomog.experiments.run_file.schema import Config, Episodes, load
from gradhomog.experiments.run_file.toml import apply_override, flatten, merged


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
    find = pkgutil.resolve_name("gradhomog_data.benchmarks.folders:find")
    find_benchmark = pkgutil.resolve_name("gradhomog_data.benchmarks:find_benchmark")
    found = _assigned(benchmarks, data, assigned)
    errors = []
    for name in benchmarks:
        if data is not None and name not in found:
            try:
                path = find(data, find_benchmark(name), size)
            except DataError as error:  # published folders without file lists
                errors.append(str(error))
                continue
            found |= {} if path is None else {name: path}
    if errors:
        raise DataError(join_errors(errors))
    texts = {name: str(found[name].absolute()) for name in benchmarks if name in found}
    names: dict[Path, str] = {}
    for name, text in texts.items():
        path = Path(text).resolve()
        if path in names:  # it would be trained on and tested
            raise ConfigError(f"{names[path]} and {name} are the same file, {path}. Each benchmark needs its own data.")
        names[path] = name
        if "(" in text:
            raise ConfigError(f"{text}: the path contains a parenthesis, which begins options. Move or link the data.")
    return texts


def find_differences(domains: Mapping[str, str]) -> dict[str, str]:
    """Differences of the data from the published benchmarks, such as "100 of 196 classes", by name.

    Args:
        domains: as returned by `find_domains`.

    Raises:
        DataError: a file or folder cannot be used.
    """
    count = pkgutil.resolve_name("gradhomog_data.benchmarks.files_check:count")
    counted = {name: count(name, Path(text)) for name, text in domains.items()}
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
    return [name for name in paper.benchmarks if name != paper.training_only]


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
    - "none": no domains.

    Raises:
        ConfigError: too few benchmarks are present.
    """
    match kind:
        case "none":
            return {}, frozenset()
        case "same":
            used = frozenset({column})
            tables = {"train": [domains[column]], "test": [domains[column]], "setting": "weak"}
        case "leave_one_out":
            used, tables = frozenset(paper.benchmarks), _leave_one_out(paper, column, domains)
        case "transfer":
            used, tables = frozenset(paper.benchmarks), _transfer(paper, domains, targets)
    return {"domains": tables}, used


def _leave_one_out(paper: Paper, column: str, domains: Mapping[str, str]) -> dict[str, Any]:
    others = [name for name in domains if name != column]
    validation = [domains[name] for name in others if name not in paper.few_classes]
    if not validation:
        needed = ", ".join(name for name in paper.benchmarks if name not in (*paper.few_classes, column))
        raise _missing(f"the strong problem with target {column} needs at least one of {needed} to train on", others)
    train = [domains[name] + '(class_split="train")' * (name in paper.few_classes) for name in others]
    return {"setting": "strong", "train": train, "validation": validation, "test": [domains[column]]}


def _transfer(paper: Paper, domains: Mapping[str, str], targets: Sequence[str]) -> dict[str, Any]:
    others = [name for name in domains if name != paper.training_only and (not targets or name in targets)]
    if paper.training_only not in domains or not others:
        raise _missing(f"a transfer needs {paper.training_only} and another benchmark", list(domains))
    return {"train": [domains[paper.training_only]], "test": [domains[name] for name in others], "setting": "weak"}


def _missing(needed: str, found: Sequence[str]) -> ConfigError:
    present = ", ".join(found) or "no other benchmark"
    return ConfigError(f"{needed}; found {present}. Put it into the data folder, or pass --domain NAME=PATH.")


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


_SHARE = re.compile(r"STEPS\*([\d.]+)")


@dataclass(frozen=True)
class Settings:
    """The user's choices.

    Attributes:
        domains: text of a domain for each benchmark that is present.
        scale: a scale of the paper.
        learners: learners of the rows: titles of the paper such as "iMAML", or names of plugins with options; empty:
            those of the table.
        targets: columns; empty: all of the table that are present.
        shots: numbers of shots; empty: those of the table.
        methods: titles of rows; empty: all.
        others: True to include comparison methods, the rows with a `learner`.
        overrides: `key.path=value` of the run files.
        folder: the folder of a problem's data, which replaces `$data`.
    """

    domains: Mapping[str, str]
    scale: str = "smoke"
    learners: Sequence[str] = ()
    targets: Sequence[str] = ()
    shots: Sequence[int] = ()
    methods: Sequence[str] = ()
    others: bool = True
    overrides: Sequence[str] = ()
    folder: str = ""


@dataclass(frozen=True)
class PlannedRow:
    """A row of a comparison.

    Attributes:
        title: its name in our table.
        published: its name in the paper's; None if its numbers do not apply.
    """

    title: str
    learner: str
    homogenizers: str
    published: str | None = None


@dataclass(frozen=True)
class PlannedComparison:
    """One comparison.

    Attributes:
        name: name of its folder.
        column: title of the column, such as "cub 1-shot", which is also that of the paper's table.
        protocol: name of its protocol.
        rows: in the order of the methods of the configuration.
        used: the benchmarks that the paper's column uses.
    """

    name: str
    column: str
    protocol: str
    config: Config
    rows: tuple[PlannedRow, ...]
    used: frozenset[str]


def planned_comparisons(name: str, settings: Settings) -> list[PlannedComparison]:
    """The comparisons of an experiment, for the benchmarks that are present.

    Raises:
        ConfigError: a name is unknown, no column is present or has a row, or an override is invalid. PluginError: the
            paper cannot be read.
    """
    paper, key = read_experiment(name)
    experiment = paper.experiments[key]
    _check(name, paper, experiment, settings)
    scale = paper.scales[settings.scale]
    by_title = {title.lower(): title for title in paper.learners}
    titles = [by_title.get(text.lower(), text) for text in settings.learners]
    learners = {title: paper.learners.get(title, title) for title in titles or _first(scale, experiment.learners)}
    columns = [
        (protocol, column)
        for protocol, names in experiment.columns.items()
        for column in names
        if is_present(paper, column, settings.domains, settings.targets)
    ]
    found = []
    for protocol, column in columns if settings.targets else _first(scale, columns):
        for shots in dict.fromkeys(settings.shots) or _first(scale, experiment.shots) or [0]:
            found += _column_comparisons(paper, experiment, protocol, column, shots, settings, learners)
    if not found and settings.methods:
        of = f" of {', '.join(settings.targets)}" if settings.targets else ""
        raise ConfigError(f"no column{of} has a row {', '.join(settings.methods)}.")
    if not found:
        raise ConfigError(
            f"`{name}` needs at least one of the benchmarks {', '.join(target_names(paper, experiment))}; none is "
            "present. Pass the folder of the data by --data, or files by --domain NAME=PATH; `gradhomog data list` "
            "prints where each is obtained."
        )
    return found


def image_size(name: str, scale: str, overrides: Sequence[str]) -> int:
    """The side in pixels of the largest images of an experiment, to find data of this size."""
    paper, key = read_experiment(name)
    layers = [paper.settings, paper.scales[scale].settings]
    sizes = [
        merged(*layers, paper.scales[scale].protocols.get(protocol, {})).get("network", {}).get("size", 0)
        for protocol in paper.experiments[key].columns
    ]
    return load(None, overrides, {"network": {"size": max(sizes)}} if max(sizes) else {}).network.size


def _column_comparisons(
    paper: Paper,
    experiment: Experiment,
    name: str,
    column: str,
    shots: int,
    settings: Settings,
    learners: Mapping[str, str],
) -> list[PlannedComparison]:
    """The comparisons of one column with one number of shots (0: none), one for each learner and group of rows.

    Args:
        name: the protocol of the column.
        learners: expressions by title.
    """  # fmt: skip
    protocol, scale = paper.protocols[name], paper.scales[settings.scale]
    domains, used = choose_domains(paper, protocol.domains, column, settings.domains, settings.targets)
    keys = merged(
        paper.settings, scale.settings, protocol.settings, scale.protocols.get(name, {}),
        {"episodes": {"shots": shots}} if shots else {},
    )  # fmt: skip
    texts = {"column": column, "data": settings.folder, **paper.variables, **protocol.variables}
    texts |= scale.variables | experiment.variables
    variables = {key: Template(text).safe_substitute(texts) for key, text in texts.items()}
    steps = _training_steps(keys, settings.overrides)
    groups: dict[tuple[str, str], dict[str, PlannedRow]] = {}  # by pipeline: equal rows are computed once
    for row, planned in _rows(experiment, name, settings, learners):
        learner, pipeline = filled([planned.learner, planned.homogenizers], variables, steps)
        rows = groups.setdefault((learner, row.group), {})
        rows.setdefault(pipeline, replace(planned, learner=learner, homogenizers=pipeline))
    title = f"{column} {shots}-shot" if shots else column
    found = []
    for (learner, group), rows in groups.items():
        content, of_group = merged(keys, protocol.groups.get(group, {})), steps
        overrides = settings.overrides
        if isinstance(share := content.get("train", {}).get("steps"), str):  # which STEPS is in the rest of the group
            content["train"]["steps"] = of_group = filled(share, variables, steps)
            overrides = [text for text in overrides if text.partition("=")[0].strip() != "train.steps"]
        content = filled(content, variables, of_group)
        content |= {**domains, "homogenizers": list(rows)} | ({"learner": learner} if learner else {})
        config = load(None, overrides, content)
        if config.problem is None and config.episodes.ways != Episodes.ways:  # that of the papers
            rows = {text: replace(row, published=None) for text, row in rows.items()}
        folder = "-".join(filter(None, [*title.split(), learner and _folder_name(learner), group]))
        found.append(PlannedComparison(folder, title, name, config, tuple(rows.values()), used))
    return found


def _rows(
    experiment: Experiment, protocol: str, settings: Settings, learners: Mapping[str, str]
) -> Iterator[tuple[Row, PlannedRow]]:
    """The rows of a column in order: those of comparison methods, then those of each learner."""
    pairs = [(row, "", row.learner) for row in experiment.rows if row.learner and settings.others]
    pairs += [(row, *learner) for learner in (learners or {"": ""}).items() for row in experiment.rows
              if not row.learner]  # fmt: skip
    chosen = [name.lower() for name in settings.methods]
    for row, learner_title, learner in pairs:
        title = published = Template(row.title).safe_substitute(learner=learner_title)
        if len(learners) > 1 and learner_title and "$learner" not in row.title:
            title = f"{learner_title}, {title}"
        if protocol in (row.protocols or [protocol]) and (not chosen or title.lower() in chosen):
            yield row, PlannedRow(title, learner, row.homogenizers, published)


def filled(value: Any, variables: Mapping[str, str], steps: int) -> Any:
    """A value with the texts of `$name`, and for `STEPS*x` a share of the training steps, at least 1.

    >>> filled({"learner": "meta_transfer(pretrain_steps=STEPS*0.5)", "train": {"log_every": "STEPS*0.01"}}, {}, 400)
    {'learner': 'meta_transfer(pretrain_steps=200)', 'train': {'log_every': 4}}

    Raises:
        ConfigError: a variable is unknown.
    """
    if isinstance(value, Mapping):
        return {key: filled(each, variables, steps) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, variables, steps) for each in value]
    if not isinstance(value, str):
        return value
    try:
        text = Template(value).substitute(variables)
    except (KeyError, ValueError) as cause:
        raise ConfigError(f"{value!r}: unknown variable {cause}; known: {', '.join(sorted(variables))}.") from cause

    def share(match: re.Match[str]) -> str:
        return str(max(1, round(steps * float(match[1]))))

    whole = _SHARE.fullmatch(text)
    return int(share(whole)) if whole else _SHARE.sub(share, text)


def _training_steps(keys: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """The value of `train.steps` after overrides; 1 if it is invalid, and `load` will raise."""
    content = merged(keys)
    for override in overrides:
        apply_override(content, override)
    steps = flatten(content).get("train.steps")
    return steps if isinstance(steps, int) else 1


def _first(scale: Scale, values: Sequence[Any]) -> Sequence[Any]:
    return values[:1] if scale.first else values


def _folder_name(learner: str) -> str:
    """A name for an expression, unique and of at most 60 characters.

    >>> _folder_name("maml"), _folder_name("maml(inner_lr=0.1)")
    ('maml', 'maml-inner_lr-0-1-da99f7')
    """
    if re.fullmatch(r"[a-z0-9_]{1,53}", learner):
        return learner
    slug = re.sub(r"[^a-z0-9_]+", "-", learner.lower()).strip("-")[:53].strip("-")
    return f"{slug}-{hashlib.sha256(learner.encode()).hexdigest()[:6]}"


def _check(name: str, paper: Paper, experiment: Experiment, settings: Settings) -> None:
    """Raise ConfigError for unknown names, options without effect, and overrides of keys that the experiment sets."""
    without_effect = {
        "--learner": settings.learners and not experiment.learners,
        "--shots": settings.shots and not experiment.shots,
        "--without-others": not settings.others and not experiment.learners,
        "--data or --domain": settings.domains and not paper.benchmarks,
    }
    errors = [
        *(f"`{option}` has no effect in `{name}`; remove it." for option, found in without_effect.items() if found),
        *_unknown(f"`{name}` has no target", settings.targets, target_names(paper, experiment)),
        *(
            f"the benchmark {name} is not present; put it into the data folder or pass --domain."
            for name in settings.targets
            if paper.benchmarks and name in target_names(paper, experiment) and name not in settings.domains
        ),
    ]
    titles = {row.title.lower(): row.title for row in experiment.rows}
    if not any("$learner" in title for title in titles):  # else titles depend on the learners
        methods = [titles.get(method.lower(), method) for method in settings.methods]
        errors += _unknown(f"`{name}` has no method", methods, list(titles.values()))
    for override in settings.overrides:
        key = override.partition("=")[0].strip()
        reserved = {**paper.reserved, **experiment.reserved}.items()
        instead = [text for path, text in reserved if f"{key}.".startswith(f"{path}.") or path.startswith(f"{key}.")]
        errors += [f"--set {key}: the experiment sets this key; use {text}." for text in instead[:1]]
    if errors:
        raise ConfigError(join_errors(errors))


def _unknown(words: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Errors of the names that are not known."""
    listed = ", ".join(known)
    return [f"{words} {name!r}; it has {listed}.{did_you_mean(name, known)}" for name in names if name not in known]
