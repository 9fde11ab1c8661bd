"""Shorten a comparison, to check that a run file works; the scores must not be used to compare methods."""

from __future__ import annotations

from dataclasses import replace

from gradhomog.experiments.run_file.schema import Config

REDUCTION = 10
"""Factor by which training steps and test tasks are reduced."""


def shorten(config: Config) -> Config:
    """Return the configuration with its first seed only, one tenth of the training steps and of the test tasks."""
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
