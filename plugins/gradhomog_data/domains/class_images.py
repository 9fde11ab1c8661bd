"""Few-shot classification tasks drawn from an array of images, in memory or mapped from a file."""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradhomog import DataError, Domain, Split, Task, classification_task, draw_examples

CLASS_SPLITS = ("train", "val", "test")


def split_classes(class_names: Sequence[str]) -> list[str]:
    """Divide classes 50/25/25 into train, val and test, and return the split of each class in the order of the input.

    Of n classes floor(n/4) are test, floor(n/4) val, the rest train. Classes are sorted by the SHA-256 of their names.
    This permutation is fixed and needs no random generator, so that every machine and every version gives the same
    splits, and it does not depend on the order in which a file system lists the classes.
    """
    # `surrogatepass`: names of files that are not valid UTF-8 contain surrogates.
    order = sorted(class_names, key=lambda name: (hashlib.sha256(name.encode(errors="surrogatepass")).digest(), name))
    quarter = len(order) // 4
    rank = {name: index for index, name in enumerate(order)}
    return [CLASS_SPLITS[2 - min(rank[name] // quarter, 2)] if quarter else "train" for name in class_names]


class ClassImages(Domain):
    """A domain whose tasks are drawn from labelled images.

    Args:
        name: name of the domain in reports.
        images: uint8 `[n, size, size, channels]`, values 0..255, one or three channels. If labels are in ascending
            order, the array is used without a copy, for example an array that is mapped from a file.
        labels: integers `[n]` in 0..classes-1.
        class_names: one name per class, all different.
        class_split: `"train"`, `"val"` or `"test"` per class if the data have an official split; otherwise
            `split_classes` divides the classes 50/25/25.
        source: name of the data in error messages, e.g. the path of a file; if empty, the domain's name.
        sha256: SHA-256 of the bytes of `images`, if it is known; otherwise computed for `fingerprint`.

    Raises:
        DataError: an array has the wrong type, shape or values, or a class has no image.

    Tasks contain float32 `[*, channels, size, size]` in [-1, 1], ordered by class.
    """

    def __init__(
        self,
        name: str,
        images: NDArray[np.uint8],
        labels: NDArray[np.integer[Any]],
        class_names: Sequence[str],
        *,
        class_split: Sequence[str] | None = None,
        source: str = "",
        sha256: str = "",
    ) -> None:
        self.name = name
        self.class_names = tuple(str(class_name) for class_name in class_names)
        source = source or f"domain {name!r}"
        check_images(source, images.dtype, images.shape)
        check_labels(source, labels.dtype, labels.shape, len(images))
        check_classes(source, labels, self.class_names, class_split)
        labels = labels.astype(np.int64)  # `np.bincount` rejects uint64
        self.class_split = tuple(split_classes(self.class_names) if class_split is None else map(str, class_split))
        size, channels = images.shape[1], images.shape[3]
        self.input_shape = (channels, size, size)
        self.outputs = None
        # Grouped by class: sampling is arithmetic on offsets, and the images of a class are contiguous in memory.
        # Images that are already grouped are not copied: they may be mapped from a file that is larger than memory.
        grouped = bool((labels[1:] >= labels[:-1]).all())
        self._images = images if grouped else images[np.argsort(labels, kind="stable")]
        self._counts = np.bincount(labels, minlength=len(self.class_names))
        self._starts = np.cumsum(self._counts) - self._counts
        self._sha256 = sha256 if grouped else ""

    @functools.cached_property
    def fingerprint(self) -> str:
        """A short hash of all pixels, classes and splits; it does not depend on paths, formats and times of files."""
        pixels = self._sha256 or hashlib.sha256(np.ascontiguousarray(self._images).data).hexdigest()
        classes = [self.class_names, self.class_split, self._counts.tolist(), self._images.shape]
        return hashlib.sha256(json.dumps([pixels, *classes]).encode()).hexdigest()[:12]

    def classes(self, split: Split) -> list[int]:
        """Return the indices of the classes of a split, in the order of `class_names`."""
        if split not in (allowed := get_args(Split)):
            raise DataError(f"domain {self.name!r}: `split` must be one of {', '.join(allowed)}; got {split!r}.")
        return [index for index, own in enumerate(self.class_split) if split in ("all", own)]

    def _eligible(self, split: Split, needed: int) -> list[int]:
        return [index for index in self.classes(split) if self._counts[index] >= needed]

    def check(self, split: Split, *, ways: int, shots: int, queries: int) -> None:
        """Raise `DataError` if fewer than `ways` classes of the split have `shots + queries` images."""
        classes, eligible = self.classes(split), self._eligible(split, shots + queries)
        if len(eligible) >= ways:
            return
        counts = self._counts[classes]
        images = f" of {counts.min()} to {counts.max()} images" if classes else ""
        advice = "Use fewer ways" if len(classes) < ways else "Use fewer shots or queries"
        alternative = "" if split == "all" else ", or use the split 'all' if nothing is trained on this domain"
        raise DataError(
            f"domain {self.name!r}, split {split!r}: {ways}-way tasks of {shots} shots and {queries} queries need "
            f"{ways} classes of at least {shots + queries} images; found {len(classes)} classes{images}, of which "
            f"{len(eligible)} qualify. {advice}{alternative}."
        )

    def sample(self, split: Split, random: np.random.Generator, *, ways: int, shots: int, queries: int) -> Task:
        """Draw one task from the classes that have at least `shots + queries` images."""
        self.check(split, ways=ways, shots=shots, queries=queries)
        eligible = np.array(self._eligible(split, shots + queries))
        drawn, within = draw_examples(random, self._counts[eligible], ways=ways, size=shots + queries)
        classes = eligible[drawn]
        rows = self._starts[classes][:, None] + within
        return classification_task(self._pixels(rows[:, :shots]), self._pixels(rows[:, shots:]), self.name, classes)

    def _pixels(self, rows: NDArray[np.int64]) -> Tensor:
        pixels = torch.from_numpy(self._images[rows.reshape(-1)])
        # 127.5 is exact in float32, so that 0 gives exactly -1 and 255 gives exactly 1.
        # Permute channels while values are bytes, with a quarter of the memory; then scale in place.
        return pixels.permute(0, 3, 1, 2).contiguous().float().div_(127.5).sub_(1.0)


def check_images(source: str, dtype: np.dtype[Any], shape: tuple[int, ...], *, square: bool = True) -> None:
    """Raise `DataError` unless a domain can use such images; `square=False` if they will be cropped."""
    if dtype != np.uint8:
        raise DataError(
            f"{source}: `images` must be uint8, 0..255; got {dtype}. "
            "Scale and round the values, then `.astype('uint8')`."
        )
    if len(shape) != 4 or shape[3] not in (1, 3) or (square and shape[1] != shape[2]) or not all(shape):
        side = "size, size" if square else "height, width"
        raise DataError(
            f"{source}: `images` must have shape [n, {side}, channels], 1 or 3 channels, all at least 1; got {shape}."
        )


def check_labels(source: str, dtype: np.dtype[Any], shape: tuple[int, ...], images: int) -> None:
    """Raise `DataError` unless labels of this type and shape are one integer per image."""
    if not np.issubdtype(dtype, np.integer) or len(shape) != 1:
        raise DataError(f"{source}: `labels` must be integers [n]; got {dtype} {shape}.")
    if shape[0] != images:
        raise DataError(f"{source}: `labels` must have one entry per image; got {shape[0]} for {images} images.")


def check_classes(
    source: str, labels: NDArray[np.integer[Any]], class_names: Sequence[str], class_split: Sequence[str] | None
) -> None:
    """Raise `DataError` unless names differ, labels are in range, and each class has an image and a known split."""
    if len(set(class_names)) < len(class_names):
        twice = next(name for name, count in Counter(class_names).items() if count > 1)
        raise DataError(f"{source}: `class_names` must differ from each other; {twice!r} occurs more than once.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(class_names):
        raise DataError(
            f"{source}: `labels` must be in 0..{len(class_names) - 1}, as there are {len(class_names)} class names; "
            f"got {low}..{high}."
        )
    counts = np.bincount(labels.astype(np.int64), minlength=len(class_names))
    if len(empty := np.flatnonzero(counts == 0)):
        raise DataError(
            f"{source}: every class needs an image; class {class_names[empty[0]]!r} has none "
            f"({len(empty)} of {len(class_names)} classes are empty). Remove it from the class names."
        )
    if class_split is None:
        return
    if len(class_split) != len(class_names):
        raise DataError(
            f"{source}: `class_split` must have one entry per class; got {len(class_split)} for {len(class_names)}."
        )
    if unknown := sorted(set(map(str, class_split)) - set(CLASS_SPLITS)):
        values = ", ".join(map(repr, unknown[:5])) + (" and others" if len(unknown) > 5 else "")
        raise DataError(f"{source}: `class_split` must hold train, val or test; got {values}.")
