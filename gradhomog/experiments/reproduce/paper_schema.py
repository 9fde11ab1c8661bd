"""Papers as TOML files: the experiments, settings and published numbers of one paper."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Len

from gradhomog.errors import ConfigError, did_you_mean, join_errors
from gradhomog.experiments.run_file import toml
from gradhomog.experiments.run_file.validation import build

Tables = dict[str, Any]
"""Nested tables of a run file."""

Published = Annotated[list[float], Len(1, 2)]
"""A published mean, and its spread if the paper prints one."""

DOMAINS = Literal["none", "same", "leave_one_out", "transfer"]
STATISTICS = (
    "score", "episodes", "median", "difference", "seeds_needed", "published", "excess", "ratio", "milliseconds",
    "seeds",
)  # fmt: skip
"""Columns of a table after the column and the row; see `report.statistics`."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        title: its name, which is also that of the published row; `$learner` is the title of the learner.
        learner: a learner of a comparison method; empty: one row for each learner of the experiment.
        homogenizers: a pipeline, or candidates separated by `|`; the baseline if empty.
        group: a group of the protocol: its rows have its settings and form a separate comparison.
        protocols: the protocols whose columns have the row; empty: all.
    """

    title: str
    learner: str = ""
    homogenizers: str = "none"
    group: str = ""
    protocols: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Protocol:
    """The settings that several columns share.

    Attributes:
        domains: training and test domains of a column, see `comparisons.choose_domains`; "none" for problems.
        settings: run-file keys of all rows, and `groups` those of the rows of a group.
        variables: texts that replace `$name`.
        score, source: the name of the score and the source of the published numbers, for the notes.
    """

    domains: DOMAINS = "none"
    settings: Tables = field(default_factory=dict)
    groups: dict[str, Tables] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    score: str = ""
    source: str = ""


@dataclass(frozen=True)
class Scale:
    """Settings for one size of machine.

    Attributes:
        summary: length and machine, for the report.
        settings: run-file keys, and `protocols` those of the columns of a protocol.
        variables: texts that replace `$name`.
        first: True to compute only the first column, number of shots and learner, unless others are chosen.
        compared: False if our scores are not compared with the published ones.
    """

    summary: str
    settings: Tables = field(default_factory=dict)
    protocols: dict[str, Tables] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    first: bool = False
    compared: bool = True


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        summary: its contents.
        columns: test domains or names of columns, by protocol.
        rows: rows of all columns.
        learners: titles in `Paper.learners`; empty for problems, whose network is the only learner.
        shots: numbers of shots; empty for problems.
        variables: texts that replace `$name`.
        reserved: as those of the paper.
        averages: columns by name of an average, which is printed for each number of shots, with that of all columns.
        by_score: for one column, a multi-task problem: a column for each named score or task in place of their mean,
            after the drop Δm of the papers and the mean rank.
        data: the folder that the problem reads, in words; it is passed by `--data` and replaces `$data`.
    """

    summary: str
    columns: dict[str, list[str]]
    rows: list[Row]
    learners: list[str] = field(default_factory=list)
    shots: list[int] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    reserved: dict[str, str] = field(default_factory=dict)
    averages: dict[str, list[str]] = field(default_factory=dict)
    by_score: bool = False
    data: str = ""


@dataclass(frozen=True)
class Paper:
    """The content of a file.

    Attributes:
        statistics: titles of the columns of a table by statistic.
        protocols, scales, experiments: by name.
        settings: run-file keys of all scales.
        variables: texts that replace `$name`, and may contain others.
        learners: expressions by title.
        reserved: what to use in place of `--set`, by the key that an experiment sets.
        benchmarks: the data; empty if the experiments need none.
        training_only: the benchmark that is not a target.
        few_classes: benchmarks of which all classes are training classes.
        spread: meaning of the second of two published numbers.
        published: published numbers by experiment, row and column; of accuracies in percent.
        notes, caption: sentences for the report.
    """

    statistics: dict[str, str]
    protocols: dict[str, Protocol]
    scales: dict[str, Scale]
    experiments: dict[str, Experiment]
    settings: Tables = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    learners: dict[str, str] = field(default_factory=dict)
    reserved: dict[str, str] = field(default_factory=dict)
    benchmarks: list[str] = field(default_factory=list)
    training_only: str = ""
    few_classes: list[str] = field(default_factory=list)
    spread: Literal["half_width", "deviation"] = "half_width"
    published: dict[str, dict[str, dict[str, Published]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    caption: str = ""


def installed_experiments() -> dict[str, str]:
    """Return the text of the paper of each experiment of gradhomog, by the experiment's name, sorted."""
    files = [file for file in resources.files("gradhomog_papers").iterdir() if file.name.endswith(".toml")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    return dict(sorted((name, text) for text in texts for name in toml.parse(text)["experiments"]))


def read_experiment(name: str) -> tuple[Paper, str]:
    """Return the paper of an experiment, and the experiment's name in `Paper.experiments`.

    Args:
        name: an experiment of gradhomog, such as `weak`, or `FILE.toml:EXPERIMENT`.

    Raises:
        ConfigError: the name is unknown, or the file is missing or invalid.
    """
    path, _, key = name.rpartition(":")
    if not path.endswith(".toml"):
        experiments = installed_experiments()
        if name not in experiments:
            raise ConfigError(
                f"unknown experiment {name!r}.{did_you_mean(name, experiments)} It must be one of "
                f"{', '.join(experiments)}, or FILE.toml:EXPERIMENT."
            )
        return parse_paper(experiments[name]), name
    content = toml.read(Path(path))
    try:
        paper = _make_paper(content)
    except ConfigError as cause:
        raise ConfigError(f"{path}: {cause}") from cause
    if key not in paper.experiments:
        raise ConfigError(f"{path} has no experiment {key!r}; it has {', '.join(paper.experiments)}.")
    return paper, key


def parse_paper(text: str) -> Paper:
    """Return the content of a file.

    Raises:
        ConfigError: the text is not valid TOML, a key is unknown, or a value is invalid.
    """
    return _make_paper(toml.parse(text))


def _make_paper(content: dict[str, Any]) -> Paper:
    paper = build(Paper, content)
    _check_names(paper)
    return paper


def _check_names(paper: Paper) -> None:
    """Raise ConfigError for names that the file uses and does not define."""
    used: list[Used] = [("statistics", name, STATISTICS) for name in paper.statistics]
    used += [("published", name, paper.experiments) for name in paper.published]
    for name, scale in paper.scales.items():
        used += [(f"scales.{name}.protocols", protocol, paper.protocols) for protocol in scale.protocols]
    for name, experiment in paper.experiments.items():
        used += _names_of(paper, experiment, f"experiments.{name}")
    errors = [f"`{where}`: unknown name {name!r}; known: {', '.join(sorted(known))}." for where, name, known in used
              if name not in known]  # fmt: skip
    errors += [f"`experiments.{name}.by_score` needs one column; got {experiment.columns}."
               for name, experiment in paper.experiments.items()
               if experiment.by_score and sum(map(len, experiment.columns.values())) != 1]  # fmt: skip
    if errors:
        raise ConfigError(join_errors(errors))


Used = tuple[str, str, Collection[str]]
"""Where a name is used, the name, and those that are defined."""


def _names_of(paper: Paper, experiment: Experiment, where: str) -> Iterator[Used]:
    """The names that an experiment uses."""
    yield from ((f"{where}.columns", protocol, paper.protocols) for protocol in experiment.columns)
    yield from ((f"{where}.learners", learner, paper.learners) for learner in experiment.learners)
    for row in experiment.rows:
        yield from ((f"{where}.rows", protocol, experiment.columns) for protocol in row.protocols)
        protocols = {*(row.protocols or experiment.columns)} & {*paper.protocols} if row.group else ()
        yield from ((f"{where}.rows", row.group, paper.protocols[name].groups) for name in sorted(protocols))
