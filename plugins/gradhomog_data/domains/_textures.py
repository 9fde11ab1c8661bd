"""Procedural grey textures, the backgrounds of glyphs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Texture(NamedTuple):
    """A kind of pattern, its periods per picture side, and its direction in degrees."""

    kind: str
    frequency: float
    angle: float


BANK: tuple[Texture, ...] = (
    *(Texture("stripes", frequency, angle) for frequency in (2.5, 4.0, 6.5) for angle in (0, 45, 90, 135)),
    *(Texture("checks", frequency, angle) for frequency in (2.0, 3.5) for angle in (0, 45)),
    *(Texture("dots", frequency, angle) for frequency in (3.0, 5.0) for angle in (0, 30)),
    *(Texture("rings", frequency, 0) for frequency in (2.5, 5.0)),
    *(Texture("gradient", 1.0, angle) for angle in (0, 90, 180, 270)),
    *(Texture("noise", frequency, 0) for frequency in (4.0, 10.0)),
)
"""All textures. At 28 px the shortest period, 1/6.5 of the side, is more than four pixels."""


def assign(
    random: np.random.Generator, own: NDArray[np.int64], *, correlation: float, textures: int = len(BANK)
) -> NDArray[np.int64]:
    """Choose a texture for each picture `[n]`: its class's `own` with probability `correlation`, else any texture."""
    cued = random.random(len(own)) < correlation
    return np.where(cued, own, random.integers(textures, size=len(own)))


def draw(random: np.random.Generator, chosen: NDArray[np.int64], size: int) -> Floats:
    """Draw one texture picture for each entry of `chosen` (indices into `BANK`): `[n, size, size]` in [0, 1].

    Phase (or centre) and contrast are random for each picture; kind, frequency and direction are those of the texture.
    """
    pictures = np.empty((len(chosen), size, size))
    for index, texture in enumerate(BANK):
        rows = np.flatnonzero(chosen == index)
        if len(rows):
            contrast = random.uniform(0.6, 1.0, size=(len(rows), 1, 1))
            pictures[rows] = 0.5 + contrast * (_pattern(texture, random, len(rows), size) - 0.5)
    return pictures


def _pattern(texture: Texture, random: np.random.Generator, count: int, size: int) -> Floats:
    kind, frequency, angle = texture
    phase = random.random((2, count, 1, 1))
    if kind == "noise":
        return _noise(random, count, size, cells=int(frequency))
    side = (np.arange(size) + 0.5) / size - 0.5
    cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    across = cosine * side[None, :] + sine * side[:, None]
    along = cosine * side[:, None] - sine * side[None, :]
    if kind == "gradient":
        return np.asarray(np.clip(0.5 + across + 0.3 * (phase[0] - 0.5), 0.0, 1.0))
    if kind == "rings":
        radius = np.hypot(side[None, None, :] - phase[0] + 0.5, side[None, :, None] - phase[1] + 0.5)
        return _edges(np.sin(2 * np.pi * frequency * radius))
    first = np.sin(2 * np.pi * (frequency * across + phase[0]))
    if kind == "stripes":
        return _edges(first)
    second = np.sin(2 * np.pi * (frequency * along + phase[1]))
    return _edges(first * second) if kind == "checks" else _edges(first + second - 1.0)


def _edges(wave: Floats) -> Floats:
    """Steepen a wave in [-1, 1] to a pattern in [0, 1] whose edges are about a pixel wide at 28 px."""
    return np.clip(0.5 + 1.5 * wave, 0.0, 1.0)


def _noise(random: np.random.Generator, count: int, size: int, *, cells: int) -> Floats:
    """Random grey values on a coarse grid, interpolated linearly."""
    grid = random.random((count, cells + 1, cells + 1))
    at = (np.arange(size) + 0.5) / size * cells
    low = at.astype(np.int64)
    weight = at - low
    rows = grid[:, low, :] * (1 - weight)[:, None] + grid[:, low + 1, :] * weight[:, None]
    return np.asarray(rows[:, :, low] * (1 - weight) + rows[:, :, low + 1] * weight)
