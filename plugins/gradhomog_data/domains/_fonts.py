"""Fonts that matplotlib ships: available characters, and renderings of one character in one font face."""

from __future__ import annotations

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
