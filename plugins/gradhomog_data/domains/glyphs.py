"""Domain `glyphs:SCRIPT`: characters rendered from the fonts that matplotlib ships, on textured backgrounds.

Nothing is downloaded. A class is one code point; its pictures differ in font face, rotation, scale, shear, position,
brightness and background. In the split `train` the background correlates with the class. This cue is not causal: it
helps in training and is useless in `val`, `test` and `all`, where backgrounds are random.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Interval
from numpy.typing import NDArray

from gradhomog import Domain, DomainSpec, Split, Task, hookimpl, validated
from gradhomog_data._packages import require_package
from gradhomog_data.domains import _cache
from gradhomog_data.domains.class_images import ClassImages, split_classes

if TYPE_CHECKING:
    from gradhomog_data.domains import _render


@dataclasses.dataclass(frozen=True)
class Script:
    """Ranges of code points, both ends included; `distinct_from` names scripts whose look-alikes are omitted."""

    ranges: tuple[tuple[int, int], ...]
    distinct_from: tuple[str, ...] = ()


SCRIPTS: dict[str, Script] = {
    "latin": Script(((0x41, 0x5A), (0x61, 0x7A), (0x30, 0x39))),
    "greek": Script(((0x370, 0x373), (0x376, 0x377), (0x37B, 0x37D), (0x388, 0x3FF)), distinct_from=("latin",)),
    "cyrillic": Script(((0x400, 0x481), (0x48A, 0x4FF)), distinct_from=("latin", "greek")),
    "armenian": Script(((0x531, 0x556), (0x561, 0x587))),
    "georgian": Script(((0x10A0, 0x10FA),)),
    "tifinagh": Script(((0x2D30, 0x2D67),)),
    "syllabics": Script(((0x1401, 0x1676),)),
    "mathematics": Script(((0x2200, 0x22FF),)),
    "arrows": Script(((0x2190, 0x21FF),)),
    "geometric": Script(((0x2580, 0x25FF),)),
    "dingbats": Script(((0x2701, 0x27BF),)),
    "symbols": Script(((0x2600, 0x26FF),)),
    "braille": Script(((0x2801, 0x28FF),)),
}


class Glyphs(Domain):
    """Tasks of rendered characters, grey, `[*, 1, size, size]`.

    Args:
        variant: a name in `SCRIPTS`.
        cued: pictures of the training classes, with the background cue.
        plain: pictures of all classes, with random backgrounds.
    """

    def __init__(self, variant: str, cued: ClassImages, plain: ClassImages) -> None:
        self.name = f"glyphs:{variant}"
        self.input_shape = plain.input_shape
        self.outputs = None
        self._cued, self._plain = cued, plain

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of all classes, such as `"U+03B1 GREEK SMALL LETTER ALPHA"`."""
        return self._plain.class_names

    @property
    def fingerprint(self) -> str:
        """A short hash of all pictures, which depend on the versions of matplotlib's fonts and of Pillow."""
        return f"{self._cued.fingerprint}-{self._plain.fingerprint}"

    def classes(self, split: Split) -> list[int]:
        """Return the indices of the classes of a split, in the order of `class_names`."""
        return self._plain.classes(split)

    def check(self, split: Split, *, ways: int, shots: int, queries: int) -> None:
        """Raise `DataError` if the split has too few classes, or the classes too few pictures."""
        self._plain.check(split, ways=ways, shots=shots, queries=queries)

    def sample(self, split: Split, random: np.random.Generator, *, ways: int, shots: int, queries: int) -> Task:
        """Draw one task; backgrounds contain the cue in `train` only."""
        pictures = self._cued if split == "train" else self._plain
        task = pictures.sample(split, random, ways=ways, shots=shots, queries=queries)
        classes = task.classes
        if pictures is self._cued:  # contains training classes only, numbered from 0
            classes = torch.tensor(self.classes("train"))[classes]
        # Domains with different options have the same name; a run that uses both renames them.
        return dataclasses.replace(task, domain=self.name, classes=classes)


@validated
def glyphs(
    variant: str,
    *,
    size: Annotated[int, Interval(ge=8, le=256)] = 28,
    instances: Annotated[int, Interval(ge=2, le=1000)] = 24,
    background: Annotated[float, Interval(ge=0, le=1)] = 0.5,
    correlation: Annotated[float, Interval(ge=0, le=1)] = 0.5,
    seed: Annotated[int, Ge(0)] = 0,
) -> Glyphs:
    """Create a glyph domain, rendered or read from the cache.

    Args:
        variant: a name in `SCRIPTS`.
        size: side of the pictures, 8..256 pixels.
        instances: pictures per class, 2..1000; a task needs `shots + queries` of them.
        background: strength of the textures, 0 (black) to 1.
        correlation: probability that a training picture has the texture of its class as background, 0..1.
        seed: seed of all random choices, >= 0. The glyphs do not change with `background` or `correlation`.

    Raises:
        OptionError: an option is out of range. DataError: matplotlib or Pillow is missing.
    """
    arrays = _rendered(
        variant, size=size, instances=instances, background=float(background), correlation=float(correlation), seed=seed
    )
    names = [str(name) for name in arrays["class_names"]]
    split = split_classes(names)
    train = [name for name, own in zip(names, split, strict=True) if own == "train"]

    def labelled(key: str, names: list[str], split: list[str]) -> ClassImages:
        labels = np.repeat(np.arange(len(names)), instances)
        return ClassImages(f"glyphs:{variant}", arrays[key], labels, names, class_split=split)

    return Glyphs(variant, labelled("cued", train, ["train"] * len(train)), labelled("plain", names, split))


def pictures(script: str, classes: int, *, size: int, instances: int, seed: int) -> NDArray[np.uint8]:
    """Return pictures of the first characters of `select(script)` on black: `[classes, instances, size, size]`, 0..255.

    They differ in face, rotation, scale, shear, position and brightness, like the pictures of the domain.

    Raises:
        DataError: matplotlib or Pillow is missing.
    """
    arrays = _rendered(
        script, classes, size=size, instances=instances, background=0.0, correlation=0.0, seed=seed
    )  # fmt: skip
    return arrays["plain"].reshape(classes, instances, size, size)


def _rendered(script: str, classes: int | None = None, *, seed: int, **options: Any) -> _cache.Arrays:
    """Return the pictures of a script's first characters and their names, from the cache or rendered."""
    require_renderer(f"glyphs:{script}")
    from gradhomog_data.domains import _render

    def render() -> _cache.Arrays:
        chosen = select(script)[:classes]
        names = [glyph.class_name for glyph in chosen]
        train = np.array([split == "train" for split in split_classes(names)])
        # Include the script's name, so that two domains with the same seed use different random numbers.
        number = int.from_bytes(hashlib.sha256(script.encode()).digest()[:4], "little")
        drawn = _render.render(chosen, train=train, entropy=[seed, number], **options)
        return {**drawn, "class_names": np.array(names)}

    own = {"script": script, "classes": classes, "ranges": SCRIPTS[script].ranges, "seed": seed, **options}
    key = {**own, "renderer": _render.VERSION, **_render.versions()}
    return _cache.load_or_make(f"glyphs-{script}-{options['size']}", key, render)


def require_renderer(subject: str) -> None:
    """Raise `DataError` if matplotlib or Pillow, which render glyphs, is not installed."""
    for module, package in (("matplotlib", "matplotlib"), ("PIL", "Pillow")):
        require_package(f"{subject} is rendered with", module, package, "plot")


def select(variant: str) -> list[_render.Glyph]:
    """Return the characters of a script that are rendered, one for each shape."""
    from gradhomog_data.domains import _render

    script = SCRIPTS[variant]
    others = [glyph for name in script.distinct_from for glyph in _render.available_glyphs(SCRIPTS[name].ranges)]
    return _render.drop_look_alikes(_render.available_glyphs(script.ranges), others)


@hookimpl
def gradhomog_domain() -> DomainSpec:
    return DomainSpec(
        factory=glyphs,
        summary="characters rendered from matplotlib's fonts on textured backgrounds; nothing to download",
        reference="similar to Omniglot (Lake, Salakhutdinov, Tenenbaum 2015, doi:10.1126/science.aab3050)",
        variants=tuple(SCRIPTS),
    )
