"""A shortened comparison, which checks that a run file works; its scores do not compare methods."""

from __future__ import annotations

from dataclasses import replace

from gradhomog.experiments.config.schema import Config

REDUCTION = 10
"""Factor by which training steps and test tasks are reduced."""


def quick(config: Config) -> Config:
    """The configuration with its first seed only, a tenth of the training steps and a tenth of the test tasks."""
    train, test = config.train, config.test
    steps = max(2, train.steps // REDUCTION)
    return replace(
        config,
        seeds=config.seed_list[:1],
        train=replace(
            train,
            steps=steps,
            validate_every=min(train.validate_every, steps),
            validation_episodes=max(2, train.validation_episodes // REDUCTION),
        ),
        test=replace(test, episodes=max(2, test.episodes // REDUCTION)),
    )
