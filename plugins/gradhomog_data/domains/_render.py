"""Render characters as pictures: random affine transforms, then ink over a procedural grey texture."""

import functools
import importlib.metadata
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from gradhomog import DataError

FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique",
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta",
)  # fmt: skip
"""Font faces in order of preference. The first is the reference face: look-alikes are compared in this face only."""

_NOMINAL_POINTS = 64
_MAX_ENLARGEMENT = 8  # limit of the font size for tiny marks, as a multiple of the requested ink extent
_SHAPE_SIDE = 24  # pixels: side of the compared shapes; `drop_look_alikes` explains the thresholds
_MAX_DIFFERENCE, _MAX_CASE_DIFFERENCE, _MAX_ASPECT_RATIO = 0.12, 0.25, 1.25


class Glyph(NamedTuple):
    """A character and the faces that contain it, as indices into `FACES`."""

    character: str
    faces: tuple[int, ...]

    @property
    def class_name(self) -> str:
        return f"U+{ord(self.character):04X} {unicodedata.name(self.character, '')}".strip()


def versions() -> dict[str, str]:
    """Return the versions of the fonts (matplotlib) and the renderer, which determine the pixels with the options."""
    return {
        "matplotlib": importlib.metadata.version("matplotlib"),
        "pillow": importlib.metadata.version("pillow"),
        "freetype": features.version("freetype2") or "none",
    }


@functools.cache
def _path(face: int) -> Path:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{FACES[face]}.ttf"
    if not path.is_file():
        raise DataError(
            f"glyphs need the font {FACES[face]}.ttf that matplotlib ships; {path} does not exist. "
            "Reinstall matplotlib from its wheel (packages of some systems omit the fonts)."
        )
    return path


@functools.cache
def _charmap(face: int) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(_path(face))).get_charmap())


@functools.lru_cache(maxsize=1024)
def _font(face: int, points: int) -> ImageFont.FreeTypeFont:
    # Basic layout: the result must not depend on whether libraqm is installed.
    return ImageFont.truetype(str(_path(face)), points, layout_engine=ImageFont.Layout.BASIC)


def ink(character: str, face: int, extent: int) -> Image.Image | None:
    """Render a character so that the longer side of its ink is about `extent` pixels, cropped to the ink (mode L).

    Return None if the face draws nothing for the character.
    """
    left, top, right, bottom = _font(face, _NOMINAL_POINTS).getbbox(character)
    longest = max(right - left, bottom - top)
    if longest <= 0:
        return None
    points = min(round(_NOMINAL_POINTS * extent / longest), _MAX_ENLARGEMENT * extent)
    font = _font(face, points)
    left, top, right, bottom = font.getbbox(character)
    # `getbbox` rounds outwards by up to a pixel: add a margin of two pixels, and crop it below
    mask = Image.new("L", (int(right - left) + 4, int(bottom - top) + 4))
    ImageDraw.Draw(mask).text((2 - left, 2 - top), character, fill=255, font=font)
    box = mask.getbbox()
    return mask.crop(box) if box else None


def available_glyphs(ranges: Iterable[tuple[int, int]], *, faces: int = 2) -> list[Glyph]:
    """Return the characters of the code point ranges that the reference face and at least `faces` faces in total have.

    Ranges include both ends. Blanks, control characters and combining marks are omitted.
    """
    available = []
    for low, high in ranges:
        for code in range(low, high + 1):
            supporting = tuple(face for face in range(len(FACES)) if code in _charmap(face))
            drawable = unicodedata.category(chr(code))[0] in "LNPS"
            if drawable and 0 in supporting and len(supporting) >= faces:
                available.append(Glyph(chr(code), supporting))
    return available


def drop_look_alikes(candidates: list[Glyph], others: list[Glyph]) -> list[Glyph]:
    """Return the candidates without those that look like an earlier kept candidate or like one of `others`.

    Shapes are compared in the reference face, stretched to a square of fixed size, because pictures of a class differ
    in size and, by up to 1.15 / 0.85, in aspect ratio. Two shapes are alike if their aspect ratios are within a factor
    of 1.25 and the sum of absolute differences, divided by the ink of both together, is at most 0.12. By this rule the
    Greek Α equals A, and ▸ equals ▶; Θ is kept (0.126 from O).
    For a small letter and its own capital the threshold is 0.25, because their stroke weights differ: c, o and u are
    dropped, and e is kept.
    """
    kept: list[Glyph] = []
    seen = [(glyph.character, shape) for glyph in others if (shape := _shape(glyph.character)) is not None]
    for glyph in candidates:
        shape = _shape(glyph.character)
        if shape is None:
            continue
        if seen:
            pictures = np.stack([picture for _, (picture, _) in seen])
            differences = np.abs(pictures - shape[0]).sum(axis=(1, 2)) / np.maximum(pictures, shape[0]).sum(axis=(1, 2))
            aspects = np.array([max(aspect / shape[1], shape[1] / aspect) for _, (_, aspect) in seen])
            capital = np.array([character == glyph.character.upper() for character, _ in seen])
            if np.any(
                (differences <= np.where(capital, _MAX_CASE_DIFFERENCE, _MAX_DIFFERENCE))
                & (aspects <= _MAX_ASPECT_RATIO)
            ):
                continue
        seen.append((glyph.character, shape))
        kept.append(glyph)
    return kept


@functools.cache
def _shape(character: str) -> tuple[NDArray[np.float32], float] | None:
    """Return the ink in the reference face, stretched to a square, and its aspect ratio (width over height)."""
    drawn = ink(character, 0, 2 * _SHAPE_SIDE)
    if drawn is None:
        return None
    square = drawn.resize((_SHAPE_SIDE, _SHAPE_SIDE), Image.Resampling.BOX)
    return np.asarray(square, dtype=np.float32) / np.float32(255), drawn.width / drawn.height


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


def assign(random: np.random.Generator, own: NDArray[np.int64], *, correlation: float) -> NDArray[np.int64]:
    """Choose a texture for each picture `[n]`: its class's `own` with probability `correlation`, else any texture."""
    cued = random.random(len(own)) < correlation
    return np.where(cued, own, random.integers(len(BANK), size=len(own)))


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
    chosen: list[Glyph],
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


def _masks(glyph: Glyph, random: np.random.Generator, *, size: int, instances: int) -> NDArray[np.uint8]:
    """Return the ink of one class, `[instances, size, size]`, 0..255; its faces are used about equally often."""
    # Transform glyphs at a multiple of the size, then average, for smooth edges. Large glyphs need less oversampling.
    oversampling = 3 if size <= 48 else 2
    canvas = size * oversampling
    faces = np.resize(random.permutation(glyph.faces), instances)
    # A face may draw nothing although its character map has the character; the reference face has ink.
    drawn = {face: ink(glyph.character, face, round(_INK * canvas)) for face in {0, *faces.tolist()}}
    turn = np.radians(random.uniform(-12, 12, instances))
    scale = random.uniform(0.85, 1.15, (instances, 2))  # independent axes: narrow and wide variants
    shear = random.uniform(-0.15, 0.15, instances)
    shift = random.uniform(-0.06, 0.06, (instances, 2)) * canvas
    masks = np.empty((instances, size, size), dtype=np.uint8)
    for index, face in enumerate(faces.tolist()):
        source = drawn[face] or drawn[0]
        assert source is not None, "`drop_look_alikes` omits characters that are blank in the reference face"
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
