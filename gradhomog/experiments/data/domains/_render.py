"""From characters to pictures: random affine changes, then ink over a texture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradhomog.experiments.data.domains import _fonts, _textures

VERSION = 1
"""Part of the cache key: raise it with every change of this module, `_fonts` or `_textures` that changes a pixel."""

_BLOCK = 512  # pictures composed at once: at 84 px all together would take a gigabyte
_INK = 0.70  # longer side of the ink, as a part of the picture's side, before random scale
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
    """Draw `instances` pictures of each character.

    Returns uint8 `[n, size, size, 1]`, grouped by class: `plain`, all classes before random textures, and `cued`, the
    classes marked in `train`, whose glyphs are the same as in `plain`, before their own texture with probability
    `correlation`.
    """
    shapes, plain_texture, cued_texture, inks = (
        np.random.default_rng(sequence) for sequence in np.random.SeedSequence(entropy).spawn(4)
    )
    masks = np.concatenate([_masks(glyph, shapes, size=size, instances=instances) for glyph in chosen])
    strength = inks.uniform(0.75, 1.0, size=(len(masks), 1, 1))
    # Dealt like cards, so that textures are shared by as few classes as possible.
    own = np.resize(cued_texture.permutation(len(_textures.BANK)), int(train.sum())).repeat(instances)

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
    anyones = _textures.assign(plain_texture, np.zeros(len(masks), dtype=np.int64), correlation=0.0)
    cued = _textures.assign(cued_texture, own, correlation=correlation)
    return {"plain": compose(everything, anyones, plain_texture), "cued": compose(training, cued, cued_texture)}


def _masks(glyph: _fonts.Glyph, random: np.random.Generator, *, size: int, instances: int) -> NDArray[np.uint8]:
    """Ink of one class, `[instances, size, size]`, 0..255; its faces are used about equally often."""
    # Glyphs are transformed at a multiple of the size and averaged down: smooth edges. Large ones need less of it.
    oversampling = 3 if size <= 48 else 2
    canvas = size * oversampling
    faces = np.resize(random.permutation(glyph.faces), instances)
    drawn = {face: _fonts.ink(glyph.character, face, round(_INK * canvas)) for face in set(faces.tolist())}
    turn = np.radians(random.uniform(-12, 12, instances))
    scale = random.uniform(0.85, 1.15, (instances, 2))  # each axis for itself: narrow and wide variants
    shear = random.uniform(-0.15, 0.15, instances)
    shift = random.uniform(-0.06, 0.06, (instances, 2)) * canvas
    masks = np.empty((instances, size, size), dtype=np.uint8)
    for index, face in enumerate(faces.tolist()):
        source = drawn[face]
        if source is None:  # blank in this face although in its character map: the reference face is not
            source = _fonts.ink(glyph.character, 0, round(_INK * canvas))
        if source is None:
            raise AssertionError(f"{glyph.class_name} is blank in the reference face; `distinct` leaves such out")
        cosine, sine = np.cos(turn[index]), np.sin(turn[index])
        rotation, slant = np.array([[cosine, -sine], [sine, cosine]]), np.array([[1.0, shear[index]], [0.0, 1.0]])
        forward = rotation @ slant * scale[index]
        inverse = np.linalg.inv(forward)  # Pillow asks where each pixel comes from
        centre = np.array(source.size) / 2 - inverse @ (canvas / 2 + shift[index])
        moved = source.transform(
            (canvas, canvas),
            Image.Transform.AFFINE,
            (*inverse[0].tolist(), float(centre[0]), *inverse[1].tolist(), float(centre[1])),
            resample=Image.Resampling.BILINEAR,
        )
        masks[index] = np.asarray(moved.reduce(oversampling))
    return masks
