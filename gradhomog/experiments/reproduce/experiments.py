"""The paper's tables and figures as lists of comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradhomog.error_lists import join_errors
from gradhomog.errors import ConfigError
from gradhomog.experiments.config.schema import Config, load
from gradhomog.experiments.config.suggestions import did_you_mean
from gradhomog.experiments.reproduce import methods, protocol
from gradhomog.experiments.reproduce.methods import Problem, Row
from gradhomog.experiments.reproduce.scales import COMMON, SCALES, Scale


@dataclass(frozen=True)
class Settings:
    """The user's choices.

    Attributes:
        domains: text of a domain for each benchmark that is present.
        scale: a name in `SCALES`.
        learners: learners of the rows: titles of the paper such as "iMAML", or names of plugins with options; empty:
            those of the table.
        targets: test benchmarks; empty: all of the table that are present.
        shots: numbers of shots; empty: those of the table.
        homogenizers: the pipeline of RotoGBML; empty: that of the scale and problem.
        others: True to include the comparison methods of the tables.
        overrides: `key.path=value` of the run files.
    """

    domains: Mapping[str, str]
    scale: str = "smoke"
    learners: Sequence[str] = ()
    targets: Sequence[str] = ()
    shots: Sequence[int] = ()
    homogenizers: str = ""
    others: bool = True
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Part:
    """One comparison: the rows of one learner and network in one column.

    Attributes:
        name: name of its folder.
        column: title of the column, such as "cub 1-shot", which is also that of the paper's table.
        rows: in the order of the methods of the configuration.
    """

    name: str
    column: str
    config: Config
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        summary: its contents, for `--help`.
        published: its table in `published.toml`; empty if the paper prints no numbers.
        columns: problem and benchmark of each column.
        rows: function of problem, scale and settings.
        default_learners: expressions by title.
        networks: networks to compare; empty: that of the scale.
        shots: numbers of shots.
    """

    summary: str
    columns: Sequence[tuple[Problem, str]]
    rows: Callable[[Problem, Scale, Settings, Mapping[str, str]], list[Row]]
    published: str = ""
    default_learners: Mapping[str, str] = field(default_factory=lambda: {"iMAML": methods.GRADIENT_BASED["iMAML"]})
    networks: Sequence[str] = ()
    shots: Sequence[int] = (1, 5)


OTHERS = "others"
"""Column of the experiment `saliency`: trained on miniImageNet, tested on all other benchmarks."""

_WEAK: list[tuple[Problem, str]] = [("weak", name) for name in protocol.WEAK]
_STRONG: list[tuple[Problem, str]] = [("strong", name) for name in protocol.TARGETS]
_FOUR: list[tuple[Problem, str]] = [*_WEAK, ("strong", "cars"), ("strong", "eurosat")]


def _table_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    pipeline = settings.homogenizers or methods.rotogbml(problem, scale.solver, protocol.BETA[problem])
    return methods.table_rows(problem, learners, pipeline, others=settings.others)


def _ablation_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    return _titled(learners, lambda it: methods.ablation_rows(problem, it, scale.solver, protocol.BETA[problem]))


def _beta_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    return _titled(learners, lambda it: methods.beta_rows(problem, it, scale.solver))


def _temperature_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    return _titled(learners, lambda it: methods.temperature_rows(problem, it, scale.solver, protocol.BETA[problem]))


def _pair_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    pipeline = settings.homogenizers or methods.rotogbml(problem, scale.solver, protocol.BETA[problem])
    return _titled(learners, lambda it: [Row("plain", it, "none"), Row("RotoGBML", it, pipeline)])


def _saliency_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    return _titled(learners, lambda it: [Row("plain", it, "none"), Row("isi", it, "isi")])


def _titled(learners: Mapping[str, str], rows: Callable[[str], list[Row]]) -> list[Row]:
    """Rows of each learner; with several learners, titles begin with the learner."""
    return [
        replace(row, title=f"{title}, {row.title}") if len(learners) > 1 else row
        for title, learner in learners.items()
        for row in rows(learner)
    ]


EXPERIMENTS: Mapping[str, Experiment] = {
    "weak": Experiment(
        "Table 1: five learners with and without RotoGBML, and comparison methods, on miniImageNet and CUB",
        _WEAK, _table_rows, "weak", methods.GRADIENT_BASED,
    ),
    "strong": Experiment(
        "Table 2: leave one domain out: train on all other benchmarks, test on each of eight",
        _STRONG, _table_rows, "strong",
        {title: learner for title, learner in methods.GRADIENT_BASED.items() if title != "Reptile"},
    ),
    "ablation": Experiment(
        "Table 3: the modules alone, in pairs, together, and hyper", _FOUR, _ablation_rows, "ablation"
    ),
    "beta": Experiment("Figures of β: RotoGBML with six values of β, and None", _FOUR, _beta_rows),
    "temperature": Experiment("Figures of T: RotoGBML with five temperatures, INF and None", _FOUR, _temperature_rows),
    "backbone": Experiment(
        "Figure of the encoders: conv4, resnet10, resnet18, each plain and with RotoGBML", _FOUR, _pair_rows,
        networks=("conv4", "resnet10", "resnet18"),
    ),
    "saliency": Experiment(
        "Figure of saliency: SmoothGrad of networks trained on miniImageNet with and without ISI, on other benchmarks",
        [("weak", OTHERS)], _saliency_rows, networks=("resnet10",), shots=(1,),
    ),
}  # fmt: skip
"""Experiments by name, each a list of comparisons. `conflict` is measured by `reproduce.conflict`."""


def parts(name: str, settings: Settings) -> list[Part]:
    """The comparisons of an experiment, for the benchmarks that are present, one for each column, learner and network.

    Raises:
        ConfigError: a name is unknown, no benchmark of the experiment is present, or an override is invalid.
    """
    experiment, scale = EXPERIMENTS[name], SCALES[settings.scale]
    _check_targets(name, experiment, settings)
    learners = _learners(experiment, settings.learners)
    found: list[Part] = []
    for problem, benchmark in experiment.columns:
        if not _is_present(benchmark, settings):
            continue
        domains = _domains(problem, benchmark, settings.domains)
        steps = _config("maml", ["none"], {**scale.keys, **domains}, settings.overrides).train.steps
        rows = [
            replace(row, learner=methods.with_steps(row.learner, steps))
            for row in experiment.rows(problem, scale, settings, learners)
        ]
        for shots in settings.shots or experiment.shots:
            for network in experiment.networks or [""]:
                keys = {**COMMON, **scale.keys, **domains, "episodes.shots": shots}
                keys |= {f"network.{key}": value for key, value in _network(problem, scale, network).items()}
                found += _parts_of(f"{benchmark} {shots}-shot", rows, keys, settings.overrides, network)
    if not found:
        needed = ", ".join(dict.fromkeys(benchmark for _, benchmark in experiment.columns))
        raise ConfigError(
            f"`{name}` needs at least one of the benchmarks {needed}; none is present. Pass the folder of the data by "
            "--data, or files by --domain NAME=PATH; `gradhomog data list` prints where each is obtained."
        )
    return found


def _domains(problem: Problem, benchmark: str, domains: Mapping[str, str]) -> dict[str, Any]:
    if benchmark == OTHERS:
        return protocol.transfer(domains)
    return protocol.weak(domains, benchmark) if problem == "weak" else protocol.strong(domains, benchmark)


def _parts_of(
    column: str, rows: Iterable[Row], keys: Mapping[str, Any], overrides: Sequence[str], network: str
) -> Iterator[Part]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.learner, []).append(row)
    for learner, group in groups.items():
        if network:
            group = [replace(row, title=f"{row.title}, {network}") for row in group]
        slug = re.sub(r"[^a-z0-9_]+", "-", learner.lower()).strip("-")
        words = [*column.split(), slug, *([network] if network else [])]
        yield Part(
            "-".join(words), column, _config(learner, [row.homogenizers for row in group], keys, overrides),
            tuple(group),
        )  # fmt: skip


def conflict_run(settings: Settings) -> tuple[Config, str]:
    """The configuration and the pipeline whose conflict is measured: all benchmarks together, the first learner.

    Raises:
        ConfigError: fewer than two benchmarks are present, or an override is invalid.
    """
    scale = SCALES[settings.scale]
    learner = next(iter(_learners(EXPERIMENTS["ablation"], settings.learners).values()))
    pipeline = settings.homogenizers or methods.rotogbml("strong", scale.solver, protocol.BETA["strong"])
    chosen = {name: text for name, text in settings.domains.items() if not settings.targets or name in settings.targets}
    keys = {**COMMON, **scale.keys, **protocol.together(chosen), "episodes.shots": next(iter(settings.shots), 1)}
    keys |= {f"network.{key}": value for key, value in scale.strong_network.items()}
    config = _config("maml", [pipeline], keys, settings.overrides)
    return replace(config, learner=methods.with_steps(learner, config.train.steps)), pipeline


def _config(learner: str, pipelines: Sequence[str], keys: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    content: dict[str, Any] = {"learner": learner, "homogenizers": list(pipelines)}
    for path, value in keys.items():
        *tables, last = path.split(".")
        table = content
        for each in tables:
            table = table.setdefault(each, {})
        table[last] = value
    return load(None, overrides, content)


def _network(problem: Problem, scale: Scale, name: str) -> dict[str, Any]:
    network = dict(scale.weak_network if problem == "weak" else scale.strong_network)
    return network | ({"name": name} if name else {})


def _learners(experiment: Experiment, chosen: Sequence[str]) -> dict[str, str]:
    """Expressions of learners by title: titles of the paper, or names of plugins."""
    if not chosen:
        return dict(experiment.default_learners)
    by_title = {title.lower(): (title, text) for title, text in methods.GRADIENT_BASED.items()}
    return dict(by_title.get(text.lower(), (text, text)) for text in chosen)


def _is_present(benchmark: str, settings: Settings) -> bool:
    if benchmark == OTHERS:
        return bool(settings.domains)
    return benchmark in settings.domains and (not settings.targets or benchmark in settings.targets)


def _check_targets(name: str, experiment: Experiment, settings: Settings) -> None:
    known = dict.fromkeys(benchmark for _, benchmark in experiment.columns)
    errors = []
    for target in settings.targets:
        if target not in known:
            errors.append(f"`{name}` has no target {target!r}; it has {', '.join(known)}.{did_you_mean(target, known)}")
        elif target not in settings.domains:
            errors.append(f"the benchmark {target} is not present; put it into the data folder or pass --domain.")
    if errors:
        raise ConfigError(join_errors(errors))
