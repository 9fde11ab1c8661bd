"""A comparison in a small part of its time: to see that a run file works and what comes of it, not to compare."""

from __future__ import annotations

from dataclasses import replace

from gradhomog.experiments.config.schema import Config

PART = 10


def quick(config: Config) -> Config:
    """The configuration with its first seed alone, a tenth of the training steps and a tenth of the test tasks."""
    train, test = config.train, config.test
    steps = max(2, train.steps // PART)
    return replace(
        config,
        seeds=config.seed_list[:1],
        train=replace(
            train,
            steps=steps,
            validate_every=min(train.validate_every, steps),
            validation_episodes=max(2, train.validation_episodes // PART),
        ),
        test=replace(test, episodes=max(2, test.episodes // PART)),
    )
