"""The fonts that matplotlib ships: which characters they have, and the ink of one character in one face."""

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

from gradhomog.errors import DataError

FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique",
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta",
)  # fmt: skip
"""Faces in order of preference. The first is the reference: it alone decides which characters look alike."""

_NOMINAL = 64
_LARGEST = 8  # tiny marks are enlarged at most to this multiple of the wanted ink, in font size
_COMPARED = 24  # pixels; for the rest see `distinct`
_ALIKE, _ALIKE_CASE, _ALIKE_ASPECT = 0.12, 0.25, 1.25


class Glyph(NamedTuple):
    """A character and the faces, by index into `FACES`, that have it."""

    character: str
    faces: tuple[int, ...]

    @property
    def class_name(self) -> str:
        return f"U+{ord(self.character):04X} {unicodedata.name(self.character, '')}".strip()


def versions() -> dict[str, str]:
    """What decides the pixels beside the options: the fonts' (matplotlib's) and the renderer's versions."""
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
            f"glyphs need the font {FACES[face]}.ttf that matplotlib ships; there is none at {path}. "
            "Reinstall matplotlib from its wheel (some systems' packages leave the fonts out)."
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

    Returns None where the face draws nothing.
    """
    left, top, right, bottom = _font(face, _NOMINAL).getbbox(character)
    longest = max(right - left, bottom - top)
    if longest <= 0:
        return None
    points = min(round(_NOMINAL * extent / longest), _LARGEST * extent)
    font = _font(face, points)
    left, top, right, bottom = font.getbbox(character)
    # getbbox rounds outwards by up to a pixel: two pixels around, cropped again below
    mask = Image.new("L", (int(right - left) + 4, int(bottom - top) + 4))
    ImageDraw.Draw(mask).text((2 - left, 2 - top), character, fill=255, font=font)
    box = mask.getbbox()
    return mask.crop(box) if box else None


def glyphs(ranges: Iterable[tuple[int, int]], *, faces: int = 2) -> list[Glyph]:
    """Characters of the code point ranges (both ends included) that the reference face and `faces` faces in all have.

    Blanks, controls and combining marks are left out.
    """
    found = []
    for low, high in ranges:
        for code in range(low, high + 1):
            having = tuple(face for face in range(len(FACES)) if code in _charmap(face))
            drawable = unicodedata.category(chr(code))[0] in "LNPS"
            if drawable and 0 in having and len(having) >= faces:
                found.append(Glyph(chr(code), having))
    return found


def distinct(candidates: list[Glyph], others: list[Glyph]) -> list[Glyph]:
    """Keep the candidates whose shape is that of no earlier candidate and of none of `others`.

    Shapes are compared in the reference face, stretched to one square: pictures of a class differ in size and, by up to
    1.15 / 0.85, in aspect. Two are alike if their aspects are within a factor 1.25 and the sum of absolute differences,
    over the ink of both together, is at most 0.12. That takes the Greek Α for A and ▸ for ▶, and keeps Θ (0.126
    from O).
    A small letter is compared with its own capital up to 0.25, as weights differ: c, o and u go, and e stays.
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
            if np.any((differences <= np.where(capital, _ALIKE_CASE, _ALIKE)) & (aspects <= _ALIKE_ASPECT)):
                continue
        seen.append((glyph.character, shape))
        kept.append(glyph)
    return kept


@functools.cache
def _shape(character: str) -> tuple[NDArray[np.float32], float] | None:
    """The ink in the reference face, stretched to a square, and its width over its height."""
    drawn = ink(character, 0, 2 * _COMPARED)
    if drawn is None:
        return None
    square = drawn.resize((_COMPARED, _COMPARED), Image.Resampling.BOX)
    return np.asarray(square, dtype=np.float32) / np.float32(255), drawn.width / drawn.height
