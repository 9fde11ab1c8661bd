"""Classify two overlaid glyphs of matplotlib's fonts: MultiMNIST without a download."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from gradhomog import ConfigError, MultiTaskData, ProblemRun, ProblemSpec, did_you_mean, hookimpl
from gradhomog_data.domains import glyphs
from gradhomog_data.problems import _pairs


def glyph_pairs(
    run: ProblemRun,
    *,
    train: Annotated[int, Ge(1)] = 6000,
    validation: Annotated[int, Ge(1)] = 1000,
    test: Annotated[int, Ge(1)] = 2000,
    batch: Annotated[int, Ge(2)] = 64,
    seed: Annotated[int, Ge(0)] = 0,
    script: str = "latin",
    classes: Annotated[int, Ge(2)] = 10,
    instances: Annotated[int, Ge(8)] = 120,
) -> MultiTaskData:
    """Return pairs of `[1, size, size]`, in [-1, 1].

    Args:
        train, validation, test: numbers of pairs per split.
        batch: pairs per step.
        seed: of all random choices.
        script: a script of the domain `glyphs`.
        classes: the first characters of the script that do not look alike.
        instances: pictures of each character.

    Raises:
        ConfigError: the script is unknown, or has too few characters. DataError: matplotlib or Pillow is missing.
    """
    if script not in glyphs.SCRIPTS:
        hint = did_you_mean(script, glyphs.SCRIPTS)
        raise ConfigError(f"`problem.script` must be one of {', '.join(glyphs.SCRIPTS)}; got {script!r}.{hint}")
    glyphs.require_renderer("`problem.name` glyph_pairs")
    available = glyphs.select(script)
    if len(available) < classes:
        raise ConfigError(
            f"`problem.classes` must be at most {len(available)}, the number of characters of {script!r} "
            f"that do not look alike; got {classes}."
        )
    side = run.size - _pairs.offset(run.size)
    drawn = glyphs.pictures(script, classes, size=side, instances=instances, seed=seed)
    note = f"Two overlaid glyphs, each one of {', '.join(glyph.character for glyph in available[:classes])}."
    return _pairs.pair_data(list(drawn), run.size, (train, validation, test), batch, seed, note)


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return ProblemSpec(
        factory=glyph_pairs,
        summary="classify two overlaid glyphs of matplotlib's fonts: MultiMNIST without a download",
        reference="similar to MultiMNIST (Sener, Koltun 2018, arXiv:1810.04650)",
        defaults=_pairs.DEFAULTS,
    )
