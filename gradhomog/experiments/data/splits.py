"""The tasks of a configuration: which domains, opened once, give training, validation and test tasks."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

from gradhomog.domains import Domain, domain, domain_identity
from gradhomog.errors import ConfigError
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.data import target_variance
from gradhomog.experiments.data.sampler import EpisodeStream
from gradhomog.registry import Registry, installed

# Validation and test tasks are the same for every method and every training seed.
EVALUATION_SEED = 0


@dataclass(frozen=True)
class Streams:
    """The tasks of a configuration: what to train on, and fixed lists to validate and test on."""

    train: EpisodeStream
    validation: EpisodeStream
    test: EpisodeStream
    input_shape: tuple[int, ...]
    outputs: int
    metric: str


@functools.lru_cache(maxsize=64)  # one process runs many trainings on the same domains
def _domain(text: str, size: int, registry: Registry) -> Domain:
    return domain(text, size=size, registry=registry)


def streams(config: Config, seed: int) -> Streams:
    """Open the domains and check that they can serve the episodes asked of them.

    Raises:
        DataError, OptionError, UnknownPluginError: a domain cannot be opened, or not serve; names it and the reason.
        ConfigError: regression and classification domains are mixed; the configuration is of a multi-task problem.
    """
    if config.problem is not None:
        raise ConfigError(f"`problem` {config.problem.name} has no episodes; leave it out here.")
    size, shape = config.network.size, config.episodes
    registry = installed()
    train, test = (
        [_domain(text, size, registry) for text in texts] for texts in (config.domains.train, config.domains.test)
    )
    trained = {domain_identity(text) for text in config.domains.train}
    seen = [domain_identity(text) in trained for text in config.domains.test]
    _tell_apart(config.domains.train, train)
    _tell_apart(config.domains.test, test)
    channels = None
    if len(train[0].input_shape) == 3:
        native = max(domain.input_shape[0] for domain in train + test)
        channels = int(config.network.channels) or native
    kind = {domain.outputs for domain in train + test}
    if len(kind) > 1:
        raise ConfigError("`domains` must be all of classification, or all of regression with one number of targets.")
    outputs = kind.pop()
    normalize = target_variance.all_known([*train, *test])
    both = [domain for domain, known in zip(test, seen, strict=True) if known]
    unseen = [domain for domain, known in zip(test, seen, strict=True) if not known]
    if both and unseen:
        known, others = (", ".join(domain.name for domain in found) for found in (both, unseen))
        raise ConfigError(
            "`domains.test` must hold only domains that are trained on (their test classes are used), or only others "
            f"(all their classes are); it mixes {known} with {others}."
        )

    def stream(domains: list[Domain], split: Any, tasks: int, seed: int) -> EpisodeStream:
        return EpisodeStream(
            domains, split=split, ways=shape.ways, shots=shape.shots, queries=shape.queries, tasks=tasks,
            setting=config.domains.setting, seed=seed, channels=channels,
        )  # fmt: skip

    input_shape = train[0].input_shape if channels is None else (channels, *train[0].input_shape[1:])
    return Streams(
        stream(train, "train", shape.tasks, seed),
        stream(train, "val", 1, EVALUATION_SEED),
        stream(test, "test" if both else "all", 1, EVALUATION_SEED),
        input_shape,
        shape.ways if outputs is None else outputs,
        "accuracy" if outputs is None else "nmse" if normalize else "mse",
    )


def _tell_apart(texts: list[str], domains: list[Domain]) -> None:
    """Domains of one name (files of one stem in two folders) are called by their texts instead."""
    names = [domain.name for domain in domains]
    for index, (text, name) in enumerate(zip(texts, names, strict=True)):
        if names.count(name) > 1:
            domains[index] = copy.copy(domains[index])
            domains[index].name = text
