"""The paper's tables and figures as lists of comparisons."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradhomog.errors import ConfigError, did_you_mean, join_errors
from gradhomog.experiments.config.schema import Config, load
from gradhomog.experiments.reproduce import methods, protocol
from gradhomog.experiments.reproduce.methods import Problem, Row
from gradhomog.experiments.reproduce.scales import COMMON, SCALES, Scale
from gradhomog.experiments.reproduce.settings import Settings, check_overrides


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
        has_pipeline: True if rows use `Settings.rotogbml`.
    """

    summary: str
    columns: Sequence[tuple[Problem, str]]
    rows: Callable[[Problem, Scale, Settings, Mapping[str, str]], list[Row]]
    published: str = ""
    default_learners: Mapping[str, str] = field(default_factory=lambda: {"iMAML": methods.GRADIENT_BASED["iMAML"]})
    networks: Sequence[str] = ()
    shots: Sequence[int] = (1, 5)
    has_pipeline: bool = False


WAYS = 5
"""Ways of the paper; its numbers are omitted for others."""

OTHERS = "others"
"""Column of the experiment `saliency`: trained on miniImageNet, tested on all other benchmarks."""

_WEAK: list[tuple[Problem, str]] = [("weak", name) for name in protocol.WEAK]
_STRONG: list[tuple[Problem, str]] = [("strong", name) for name in protocol.TARGETS]
_FOUR: list[tuple[Problem, str]] = [*_WEAK, ("strong", "cars"), ("strong", "eurosat")]


def _table_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    pipeline = _pipeline(problem, scale, settings)
    return methods.table_rows(problem, learners, pipeline, others=settings.others, published=not settings.rotogbml)


def _ablation_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    return _titled(learners, lambda it: methods.ablation_rows(problem, it, scale.solver, protocol.BETA[problem]))


def _beta_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    return _titled(learners, lambda it: methods.beta_rows(problem, it, scale.solver))


def _temperature_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    return _titled(learners, lambda it: methods.temperature_rows(problem, it, scale.solver, protocol.BETA[problem]))


def _pair_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    pipeline = _pipeline(problem, scale, settings)
    return _titled(learners, lambda it: [Row("plain", it, "none"), Row("RotoGBML", it, pipeline)])


def _saliency_rows(problem: Problem, scale: Scale, settings: Settings, learners: Mapping[str, str]) -> list[Row]:
    return _titled(learners, lambda it: [Row("plain", it, "none"), Row("isi", it, "isi")])


def _pipeline(problem: Problem, scale: Scale, settings: Settings) -> str:
    return settings.rotogbml or methods.rotogbml(problem, scale.solver, protocol.BETA[problem])


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
        _WEAK, _table_rows, "weak", methods.GRADIENT_BASED, has_pipeline=True,
    ),
    "strong": Experiment(
        "Table 2: leave one domain out: train on all other benchmarks, test on each of eight",
        _STRONG, _table_rows, "strong",
        {title: learner for title, learner in methods.GRADIENT_BASED.items() if title != "Reptile"},
        has_pipeline=True,
    ),
    "ablation": Experiment(
        "Table 3: the modules alone, in pairs, together, and hyper", _FOUR, _ablation_rows, "ablation"
    ),
    "beta": Experiment("Figures of β: RotoGBML with six values of β, and None", _FOUR, _beta_rows),
    "temperature": Experiment("Figures of T: RotoGBML with five temperatures, INF and None", _FOUR, _temperature_rows),
    "backbone": Experiment(
        "Figure of the encoders: conv4, resnet10, resnet18, each plain and with RotoGBML", _FOUR, _pair_rows,
        networks=("conv4", "resnet10", "resnet18"), has_pipeline=True,
    ),
    "saliency": Experiment(
        "Figure of saliency: SmoothGrad of networks trained on miniImageNet with and without ISI, on other benchmarks",
        [("weak", OTHERS)], _saliency_rows, networks=("resnet10",), shots=(1,),
    ),
}  # fmt: skip
"""Experiments by name, each a list of comparisons."""

CONFLICT = "Figure 1: norms, cosines and distances of the domains' gradients, with and without sampling noise"
"""The experiment `conflict`, which `reproduce.conflict` measures in one training."""


def parts(name: str, settings: Settings) -> list[Part]:
    """The comparisons of an experiment, for the benchmarks that are present, one for each column, learner and network.

    Raises:
        ConfigError: a name is unknown, no benchmark of the experiment is present, or an override is invalid.
    """
    experiment, scale = EXPERIMENTS[name], SCALES[settings.scale]
    _check_targets(name, experiment, settings)
    check_overrides(settings, networks=bool(experiment.networks))
    learners = _learners(experiment, settings.learners)
    found: list[Part] = []
    for problem, benchmark in experiment.columns:
        if not _is_present(benchmark, settings):
            continue
        domains = _domains(problem, benchmark, settings)
        steps = _config("maml", ["none"], {**scale.keys, **domains}, settings.overrides).train.steps
        rows = [
            replace(row, learner=methods.with_steps(row.learner, steps))
            for row in experiment.rows(problem, scale, settings, learners)
        ]
        for shots in dict.fromkeys(settings.shots or experiment.shots):
            for network in experiment.networks or [""]:
                keys = {**COMMON, **scale.keys, **domains, "episodes.shots": shots}
                keys |= {f"network.{key}": value for key, value in _network(problem, scale, network).items()}
                found += _parts_of(f"{benchmark} {shots}-shot", rows, keys, settings.overrides, network)
    if not found:
        needed = ", ".join(_targets(experiment))
        raise ConfigError(
            f"`{name}` needs at least one of the benchmarks {needed}; none is present. Pass the folder of the data by "
            "--data, or files by --domain NAME=PATH; `gradhomog data list` prints where each is obtained."
        )
    return found


def _domains(problem: Problem, benchmark: str, settings: Settings) -> dict[str, Any]:
    if benchmark == OTHERS:
        chosen = {*(settings.targets or settings.domains), protocol.TRAINING_ONLY}
        return protocol.transfer({name: text for name, text in settings.domains.items() if name in chosen})
    if problem == "weak":
        return protocol.weak(settings.domains, benchmark)
    return protocol.strong(settings.domains, benchmark)


def _parts_of(
    column: str, rows: Iterable[Row], keys: Mapping[str, Any], overrides: Sequence[str], network: str
) -> Iterator[Part]:
    groups: dict[str, dict[str, Row]] = {}  # by learner and pipeline: equal rows are computed once
    for row in rows:
        groups.setdefault(row.learner, {}).setdefault(row.homogenizers, row)
    for learner, by_pipeline in groups.items():
        config = _config(learner, list(by_pipeline), keys, overrides)
        group = list(by_pipeline.values())
        if network:
            group = [replace(row, title=f"{row.title}, {network}") for row in group]
        if config.episodes.ways != WAYS:
            group = [replace(row, published=None) for row in group]
        yield Part("-".join([*column.split(), _folder_name(learner), *[network] * bool(network)]), column, config,
                   tuple(group))  # fmt: skip


def _folder_name(learner: str) -> str:
    """A name for an expression, unique and of at most 60 characters.

    >>> _folder_name("maml"), _folder_name("maml(inner_lr=0.1)")
    ('maml', 'maml-inner_lr-0-1-da99f7')
    """
    if re.fullmatch(r"[a-z0-9_]{1,53}", learner):
        return learner
    slug = re.sub(r"[^a-z0-9_]+", "-", learner.lower()).strip("-")[:53].strip("-")
    return f"{slug}-{hashlib.sha256(learner.encode()).hexdigest()[:6]}"


def image_size(name: str, scale: str, overrides: Sequence[str]) -> int:
    """The side in pixels of the largest images of an experiment, to find data of this size."""
    problems = {problem for problem, _ in EXPERIMENTS[name].columns} if name in EXPERIMENTS else {"strong"}
    chosen = SCALES[scale]
    sizes = [network["size"] for problem, network in (("weak", chosen.weak_network), ("strong", chosen.strong_network))
             if problem in problems]  # fmt: skip
    return load(None, overrides, {"network": {"size": max(sizes)}}).network.size


def conflict_run(settings: Settings) -> tuple[Config, str]:
    """The configuration and the pipeline whose conflict is measured: all benchmarks together, the first learner.

    Raises:
        ConfigError: fewer than two benchmarks are present, or an override is invalid.
    """
    scale = SCALES[settings.scale]
    check_overrides(settings)
    learner = next(iter(_learners(EXPERIMENTS["ablation"], settings.learners).values()))
    pipeline = _pipeline("strong", scale, settings)
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


def _targets(experiment: Experiment) -> Sequence[str]:
    columns = dict.fromkeys(benchmark for _, benchmark in experiment.columns)
    return protocol.TARGETS if OTHERS in columns else list(columns)


def _check_targets(name: str, experiment: Experiment, settings: Settings) -> None:
    known = _targets(experiment)
    errors = []
    for target in settings.targets:
        if target not in known:
            errors.append(f"`{name}` has no target {target!r}; it has {', '.join(known)}.{did_you_mean(target, known)}")
        elif target not in settings.domains:
            errors.append(f"the benchmark {target} is not present; put it into the data folder or pass --domain.")
    if settings.rotogbml and not experiment.has_pipeline:
        errors.append(f"`--rotogbml` has no effect in `{name}`, whose rows are fixed; remove it.")
    if errors:
        raise ConfigError(join_errors(errors))
