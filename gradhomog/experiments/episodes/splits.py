"""Open the domains of a configuration and create the streams of training, validation and test tasks."""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradhomog.errors import ConfigError, DataError, GradhomogError, join_errors
from gradhomog.experiments.episodes.augmentation import augment
from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog.experiments.run_file.schema import Config, Episodes
from gradhomog.learners.domains import Domain, Split, domain, domain_identity
from gradhomog.learners.results import Evaluation
from gradhomog.registry import Registry, installed


def all_have_variance(domains: Sequence[Domain]) -> bool:
    """True if every domain has a `target_variance`, because all scores of a table must have the same metric.

    Raises:
        DataError: a target variance is not a positive number, or belongs to a classification domain.
    """
    for each in domains:
        value = each.target_variance
        if value is not None and (each.outputs is None or not 0 < value < math.inf):
            raise DataError(
                f"domain {each.name}: `target_variance` must be a positive number for regression, or None; "
                f"got {value!r}{' for classification' if each.outputs is None else ''}."
            )
    return all(each.target_variance is not None for each in domains)


def normalize_scores(result: Evaluation, domains: Sequence[Domain]) -> Evaluation:
    """Divide each task's mean squared error by the target variance of its domain; losses are unchanged.

    nmse = mean (y − ŷ)² / σ², with the mean over the query points of a task. A prediction of the mean of the domain's
    targets for every point scores 1 on average over the domain's tasks.
    """
    variances = {domain.name: domain.target_variance or math.nan for domain in domains}
    scores = [score / variances[name] for score, name in zip(result.scores, result.domains, strict=True)]
    return dataclasses.replace(result, scores=scores, metric="nmse")


# Validation and test tasks are the same for every method and every training seed.
EVALUATION_SEED = 0


@dataclass(frozen=True)
class Streams:
    """The tasks of a configuration: a stream to train on, and fixed lists to validate and test on."""

    train: EpisodeStream
    validation: EpisodeStream
    test: EpisodeStream
    outputs: int
    metric: str
    fingerprints: dict[str, str]
    """`Domain.fingerprint` by the text of the domain, in the order of the configuration, for domains that have one."""


@functools.lru_cache(maxsize=64)  # one process runs many trainings on the same domains
def _domain(text: str, size: int, registry: Registry) -> Domain:
    return domain(text, size=size, registry=registry)


def close_domains() -> None:
    """Forget the domains that this process has opened: the next call of `streams` opens them again."""
    _domain.cache_clear()


def streams(config: Config, seed: int) -> Streams:
    """Return the streams of a configuration without a problem; its domains must be able to provide such episodes.

    Raises:
        DataError, OptionError, UnknownPluginError: one domain cannot be opened, or cannot provide the episodes; the
            message contains the domain and the reason.
        ConfigError: several domains cannot be opened, or cannot provide the episodes, and the message names all of
            them; regression and classification domains are mixed.
    """
    size, shape, registry = config.network.size, config.episodes, installed()
    train, validation, test = _open_domains(config, size, registry)
    test_split = _test_split(config, test)
    everything = train + validation + test
    channels: Any = None  # validated by `EpisodeStream`
    if len(train[0].input_shape) == 3:
        channels = int(config.network.channels) or max(domain.input_shape[0] for domain in everything)
    outputs = _common_outputs(everything)
    normalize = all_have_variance(everything)
    test_queries = config.test.queries or shape.queries
    _check_episodes(
        shape, [(train, "train", shape.queries), (validation, "val", shape.queries), (test, test_split, test_queries)]
    )
    stream = functools.partial(
        EpisodeStream, ways=shape.ways, shots=shape.shots, setting=config.domains.setting, channels=channels
    )
    augmentation = augment if config.train.augmentation == "standard" else None
    texts = dict.fromkeys((*config.domains.train, *config.domains.validation, *config.domains.test))
    return Streams(
        stream(train, split="train", queries=shape.queries, tasks=shape.tasks, seed=seed, augmentation=augmentation),
        stream(validation, split="val", queries=shape.queries, tasks=1, seed=EVALUATION_SEED),
        stream(test, split=test_split, queries=test_queries, tasks=1, seed=EVALUATION_SEED),
        shape.ways if outputs is None else outputs,
        "accuracy" if outputs is None else "nmse" if normalize else "mse",
        {text: found for text in texts if (found := _domain(text, size, registry).fingerprint) is not None},
    )


def _test_split(config: Config, test: Sequence[Domain]) -> Split:
    """The split of test classes: "test" of domains that are trained on, "all" of others."""
    trained = {domain_identity(text) for text in config.domains.train}
    both: list[str] = []
    unseen: list[str] = []
    for text, each in zip(config.domains.test, test, strict=True):
        (both if domain_identity(text) in trained else unseen).append(each.name)
    if both and unseen:
        raise ConfigError(
            "`domains.test` must hold only domains that are trained on (their test classes are used), or only domains "
            f"that are not (all their classes are used); it mixes {', '.join(both)} with {', '.join(unseen)}."
        )
    return "test" if both else "all"


def _open_domains(config: Config, size: int, registry: Registry) -> tuple[list[Domain], list[Domain], list[Domain]]:
    """Return the training, validation and test domains; an error names all domains that cannot be opened."""
    chosen = config.domains
    uses = (chosen.train, chosen.validation or chosen.train, chosen.test)
    opened: dict[str, Domain] = {}
    errors: dict[str, GradhomogError] = {}
    for text in dict.fromkeys(itertools.chain(*uses)):
        try:
            opened[text] = _domain(text, size, registry)
        except GradhomogError as error:
            errors[f"{text}: {error}"] = error
    _raise_all(errors)
    train, validation, test = (_with_different_names(texts, [opened[text] for text in texts]) for texts in uses)
    return train, validation, test


def _check_episodes(shape: Episodes, uses: list[tuple[list[Domain], Split, int]]) -> None:
    """Raise the error of a domain that cannot provide the episodes, or one error that names all such domains."""
    errors: list[GradhomogError] = []
    for each, split, queries in [(each, split, queries) for domains, split, queries in uses for each in domains]:
        try:
            each.check(split, ways=shape.ways, shots=shape.shots, queries=queries)
        except GradhomogError as error:
            errors.append(error)
    _raise_all({str(error): error for error in errors})


def _raise_all(errors: Mapping[str, GradhomogError]) -> None:
    """Raise the only error, or one that lists their texts."""
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise ConfigError(f"`domains`: {join_errors(errors)}")


def _common_outputs(domains: list[Domain]) -> int | None:
    """Return the number of regression targets of all domains; None for classification."""
    names: dict[int | None, list[str]] = {}
    for each in domains:
        names.setdefault(each.outputs, []).append(each.name)
    if len(names) == 1:
        return domains[0].outputs
    groups = [
        f"{', '.join(dict.fromkeys(group))} {'is' if len(set(group)) == 1 else 'are'} "
        + ("classification" if outputs is None else f"regression with {outputs} target{'s' if outputs > 1 else ''}")
        for outputs, group in names.items()
    ]
    raise ConfigError(
        "`domains` must be all classification, or all regression with the same number of targets; "
        f"{', and '.join(groups)}."
    )


def _with_different_names(texts: list[str], domains: list[Domain]) -> list[Domain]:
    """Return the domains; if several have the same name, the name of each is its text in the run file.

    For example, files with the same stem in two folders have the same name.
    """
    renamed = [copy.copy(each) for each in domains]
    names = [each.name for each in domains]
    for each, text in zip(renamed, texts, strict=True):
        if names.count(each.name) > 1:
            each.name = text
    return renamed
