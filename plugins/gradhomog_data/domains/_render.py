"""Render characters as pictures: random affine transforms, then ink over a texture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradhomog_data.domains import _fonts, _textures

VERSION = 1
"""Part of the cache key: increase it at every change of this module, `_fonts` or `_textures` that changes a pixel."""

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
    own = np.resize(cued_random.permutation(len(_textures.BANK)), int(train.sum())).repeat(instances)

    def compose(rows: NDArray[np.int64], textures: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.uint8]:
        pictures = np.empty((len(rows), size, size, 1), dtype=np.uint8)
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            mask = masks[rows[block]] / 255.0
            texture = _textures.draw(random, textures[block], size)
            picture = (1 - mask) * (_TEXTURE * background * texture) + mask * strength[rows[block]]
            pictures[block, ..., 0] = np.rint(255 * picture)
        return pictures

    everything, training = np.arange(len(masks)), np.flatnonzero(train.repeat(instances))
    plain = _textures.assign(plain_random, np.zeros(len(masks), dtype=np.int64), correlation=0.0)
    cued = _textures.assign(cued_random, own, correlation=correlation)
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
