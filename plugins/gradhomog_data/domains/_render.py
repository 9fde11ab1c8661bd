"""Render characters as pictures: random affine transforms, then ink over a procedural grey texture."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradhomog_data.domains import _fonts

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


VERSION = 1
"""Part of the cache key: increase it at every change of this module or `_fonts` that changes a pixel."""

_BLOCK = 512  # pictures composed at once: all of them at 84 px would take a gigabyte
_INK = 0.70  # longer side of the ink, relative to the picture's side, before random scaling
_TEXTURE = 0.65  # the brightest background at strength 1; the darkest ink is 0.75, so glyphs stay legible


def render(
    chosen: list[_fonts.Glyph],
    *,
    train: NDArray[np.bool_],
    size: int,
    instances: int,
    background: float,
    correlation: float,
    entropy: list[int],
) -> dict[str, NDArray[np.uint8]]:
    """Render `instances` pictures of each character.

    Return two arrays, uint8 `[n, size, size, 1]`, grouped by class. `plain`: all classes on random textures. `cued`:
    the classes marked in `train`, with the same glyphs as in `plain`; the background is the texture of the class with
    probability `correlation`.
    """
    shape_random, plain_random, cued_random, ink_random = (
        np.random.default_rng(sequence) for sequence in np.random.SeedSequence(entropy).spawn(4)
    )
    masks = np.concatenate([_masks(glyph, shape_random, size=size, instances=instances) for glyph in chosen])
    strength = ink_random.uniform(0.75, 1.0, size=(len(masks), 1, 1))
    # Repeat a permutation of the textures, so that as few classes as possible share a texture.
    own = np.resize(cued_random.permutation(len(BANK)), int(train.sum())).repeat(instances)

    def compose(rows: NDArray[np.int64], textures: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.uint8]:
        pictures = np.empty((len(rows), size, size, 1), dtype=np.uint8)
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            mask = masks[rows[block]] / 255.0
            texture = draw(random, textures[block], size)
            picture = (1 - mask) * (_TEXTURE * background * texture) + mask * strength[rows[block]]
            pictures[block, ..., 0] = np.rint(255 * picture)
        return pictures

    everything, training = np.arange(len(masks)), np.flatnonzero(train.repeat(instances))
    plain = assign(plain_random, np.zeros(len(masks), dtype=np.int64), correlation=0.0)
    cued = assign(cued_random, own, correlation=correlation)
    return {"plain": compose(everything, plain, plain_random), "cued": compose(training, cued, cued_random)}


def _masks(glyph: _fonts.Glyph, random: np.random.Generator, *, size: int, instances: int) -> NDArray[np.uint8]:
    """Return the ink of one class, `[instances, size, size]`, 0..255; its faces are used about equally often."""
    # Transform glyphs at a multiple of the size, then average, for smooth edges. Large glyphs need less oversampling.
    oversampling = 3 if size <= 48 else 2
    canvas = size * oversampling
    faces = np.resize(random.permutation(glyph.faces), instances)
    drawn = {face: _fonts.ink(glyph.character, face, round(_INK * canvas)) for face in set(faces.tolist())}
    turn = np.radians(random.uniform(-12, 12, instances))
    scale = random.uniform(0.85, 1.15, (instances, 2))  # independent axes: narrow and wide variants
    shear = random.uniform(-0.15, 0.15, instances)
    shift = random.uniform(-0.06, 0.06, (instances, 2)) * canvas
    masks = np.empty((instances, size, size), dtype=np.uint8)
    for index, face in enumerate(faces.tolist()):
        source = drawn[face]
        if source is None:  # blank although in the character map of this face; the reference face has ink
            source = _fonts.ink(glyph.character, 0, round(_INK * canvas))
        if source is None:
            raise AssertionError(
                f"{glyph.class_name} is blank in the reference face; `drop_look_alikes` omits such characters"
            )
        cosine, sine = np.cos(turn[index]), np.sin(turn[index])
        rotation, slant = np.array([[cosine, -sine], [sine, cosine]]), np.array([[1.0, shear[index]], [0.0, 1.0]])
        forward = rotation @ slant * scale[index]
        inverse = np.linalg.inv(forward)  # Pillow maps output positions to input positions
        centre = np.array(source.size) / 2 - inverse @ (canvas / 2 + shift[index])
        moved = source.transform(
            (canvas, canvas),
            Image.Transform.AFFINE,
            (*inverse[0].tolist(), float(centre[0]), *inverse[1].tolist(), float(centre[1])),
            resample=Image.Resampling.BILINEAR,
        )
        masks[index] = np.asarray(moved.reduce(oversampling))
    return masks
