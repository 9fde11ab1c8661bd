"""Classify two overlaid glyphs of matplotlib's fonts: MultiMNIST without a download."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.config.suites import suite_pipelines
from gradhomog.experiments.data.domains import glyphs
from gradhomog.experiments.problems import pairs
from gradhomog.experiments.problems.data import Data
from gradhomog.experiments.problems.spec import ProblemSpec
from gradhomog.experiments.training.multi_task import multi_task_trainable


@dataclass(frozen=True)
class GlyphPairOptions(pairs.PairOptions):
    """Options: the first `classes` characters of a script of the domain `glyphs`, with `instances` pictures of each."""

    name: Literal["glyph_pairs"] = "glyph_pairs"
    script: str = "latin"
    classes: Annotated[int, Ge(2)] = 10
    instances: Annotated[int, Ge(8)] = 120


@functools.lru_cache(maxsize=2)  # one process runs many trainings on the same data
def data(options: GlyphPairOptions, size: int) -> Data:
    """Return pairs of `[1, size, size]`, in [-1, 1].

    Raises:
        ConfigError: the script is unknown, or has too few characters. DataError: matplotlib or Pillow is missing.
    """
    if options.script not in glyphs.SCRIPTS:
        hint = did_you_mean(options.script, glyphs.SCRIPTS)
        raise ConfigError(f"`problem.script` must be one of {', '.join(glyphs.SCRIPTS)}; got {options.script!r}.{hint}")
    glyphs.require_renderer("`problem.name` glyph_pairs")
    available = glyphs.select(options.script)
    if len(available) < options.classes:
        raise ConfigError(
            f"`problem.classes` must be at most {len(available)}, the number of characters of {options.script!r} "
            f"that do not look alike; got {options.classes}."
        )
    drawn = glyphs.pictures(
        options.script, options.classes, size=size - pairs.offset(size), instances=options.instances, seed=options.seed
    )
    characters = ", ".join(glyph.character for glyph in available[: options.classes])
    return pairs.data(list(drawn), options, size, (f"Two overlaid glyphs, each one of {characters}.",))


PROBLEM = ProblemSpec(
    name="glyph_pairs",
    options=GlyphPairOptions,
    trainable=multi_task_trainable(data),
    defaults={**pairs.DEFAULTS, "homogenizers": suite_pipelines("multitask")},
)
