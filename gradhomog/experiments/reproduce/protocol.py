"""Run-file settings of the paper's problems: weak and strong out-of-distribution generalization, and transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradhomog.errors import ConfigError

TRAINING_ONLY = "miniimagenet"
"""The benchmark that the strong problem uses for training only, "because of its diversity" (section 5)."""

NATURAL = ("cub", "cars", "places", "plantae")
SPECIALIZED = ("chestx", "cropdiseases", "eurosat", "isic")
TARGETS = (*NATURAL, *SPECIALIZED)
"""Test benchmarks of the strong problem, in the order of Table 2: two blocks, each with its average."""

NAMES = (TRAINING_ONLY, *TARGETS)
"""The nine benchmarks."""

WEAK = (TRAINING_ONLY, "cub")
"""Benchmarks of the weak problem, Table 1."""

BETA = {"weak": 0.1, "strong": 1.5}
"""β of `reweight`: small for similar tasks (section 5)."""


def weak(domains: Mapping[str, str], name: str) -> dict[str, Any]:
    """Settings of the weak problem on a benchmark: training, validation and test classes of the same data.

    `domains` maps names of benchmarks to texts for `gradhomog.domain`.
    """
    return {"domains.train": [domains[name]], "domains.test": [domains[name]], "domains.setting": "weak"}


def strong(domains: Mapping[str, str], target: str) -> dict[str, Any]:
    """Settings of the strong problem, leave one domain out: train on all other benchmarks, test on the target.

    Each task of a batch comes from another benchmark. Of the four specialized benchmarks, which have 7 to 38 classes,
    all classes are training classes; validation tasks come from the other benchmarks. All classes of the target are
    test classes.

    Raises:
        ConfigError: no benchmark with validation classes remains to train on.
    """
    others = [name for name in domains if name != target]
    validation = [domains[name] for name in others if name not in SPECIALIZED]
    if not validation:
        raise ConfigError(
            f"the strong problem with target {target} needs at least one of "
            f"{', '.join((TRAINING_ONLY, *(name for name in NATURAL if name != target)))} to train on; found "
            f"{', '.join(others) or 'no other benchmark'}. Put it into the data folder, or pass --domain NAME=PATH."
        )
    return {
        "domains.train": [_all_classes(domains[name]) if name in SPECIALIZED else domains[name] for name in others],
        "domains.validation": validation,
        "domains.test": [domains[target]],
        "domains.setting": "strong",
    }


def transfer(domains: Mapping[str, str]) -> dict[str, Any]:
    """Settings of training on miniImageNet and testing on all other benchmarks, for pictures of all of them.

    Raises:
        ConfigError: miniImageNet, or any other benchmark, is not present.
    """
    others = [text for name, text in domains.items() if name != TRAINING_ONLY]
    if TRAINING_ONLY not in domains or not others:
        raise ConfigError(
            f"`saliency` needs {TRAINING_ONLY} and at least one other benchmark; found "
            f"{', '.join(domains) or 'none'}. Put them into the data folder, or pass --domain NAME=PATH."
        )
    return {"domains.train": [domains[TRAINING_ONLY]], "domains.test": others, "domains.setting": "weak"}


def together(domains: Mapping[str, str]) -> dict[str, Any]:
    """Settings with all benchmarks as training domains, to compare their gradients; tested on the natural ones.

    Raises:
        ConfigError: fewer than two benchmarks, or none with test classes.
    """
    natural = [domains[name] for name in domains if name not in SPECIALIZED]
    if len(domains) < 2 or not natural:
        raise ConfigError(
            f"a conflict between domains needs two benchmarks, one of them among "
            f"{', '.join((TRAINING_ONLY, *NATURAL))}; found {', '.join(domains) or 'none'}. Pass --data or --domain."
        )
    return {
        "domains.train": [_all_classes(domains[name]) if name in SPECIALIZED else domains[name] for name in domains],
        "domains.validation": natural,
        "domains.test": natural,
        "domains.setting": "strong",
    }


def _all_classes(text: str) -> str:
    """The text of a domain with the option that makes all of its classes training classes."""
    return f'{text}(class_split="train")'
