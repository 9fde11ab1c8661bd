"""Read images from JSON file lists, as used in few-shot learning (`base.json`, `val.json`, `novel.json`)."""

from __future__ import annotations

import json
import os
import reprlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradhomog.errors import DataError
from gradhomog.experiments.data.domains._limits import check_memory
from gradhomog.experiments.data.domains._pictures import read_pictures
from gradhomog.experiments.data.domains.class_images import ClassImages

FILES = {"base.json": "train", "val.json": "val", "novel.json": "test"}
"""Conventional file names of lists, and the split of each."""

TEXT_SHARE = 64
"""A list is limited to `max_bytes` / 64: parsed, `[[]],[[]]` takes 37 bytes per character, plus the text itself."""


def read_json(path: Path, size: int, per_class: int | None, max_bytes: int) -> ClassImages:
    """Read one list, whose classes have no official split, or a folder with at least one of the three lists.

    A list is `{"label_names": [...], "image_names": [...], "image_labels": [...]}`: image i, a path relative to the
    list or absolute, belongs to class `label_names[image_labels[i]]`. Classes without images in a list are ignored,
    because the lists of the three splits share their `label_names`. At most the first `per_class` images of a class are
    read.

    Raises:
        DataError: a list or image cannot be read; the message contains the path and the reason.
    """
    lists = [path / name for name in FILES if (path / name).is_file()] if path.is_dir() else [path]
    groups: dict[str, list[str]] = {}
    splits: dict[str, str] = {}
    listed: dict[Path, list[str]] = {}
    for file in lists:
        classes = _read_list(file, per_class, max_bytes // TEXT_SHARE)
        if shared := groups.keys() & classes.keys():
            raise DataError(
                f"{file}: splits must not share a class; {min(shared)!r} is also in another list of the folder."
            )
        groups |= classes
        splits |= dict.fromkeys(classes, FILES.get(file.name, ""))
        listed[file] = [image for images in classes.values() for image in images]
    check_memory(path, (sum(map(len, listed.values())), size, size, 3), max_bytes)
    for file, images in listed.items():
        _require_files(file, images)
    names = sorted(groups)
    return ClassImages(
        path.resolve().name if path.is_dir() else path.stem,
        read_pictures(path, [Path(image) for name in names for image in groups[name]], size, max_bytes),
        np.repeat(np.arange(len(names)), [len(groups[name]) for name in names]),
        names,
        class_split=[splits[name] for name in names] if path.is_dir() else None,
        source=str(path),
    )


def _read_list(file: Path, per_class: int | None, max_bytes: int) -> dict[str, list[str]]:
    """Return the paths of the images of each class, without the classes that have no images."""
    content = _load(file, max_bytes)
    names, images, labels = (content[key] for key in ("label_names", "image_names", "image_labels"))
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{file}: `label_names` must differ from each other; {twice!r} occurs more than once.")
    if len(images) != len(labels) or not images:
        raise DataError(
            f"{file}: `image_names` and `image_labels` must have the same length, at least 1; "
            f"got {len(images)} and {len(labels)}."
        )
    if (low := min(labels)) < 0 or (high := max(labels)) >= len(names):
        wrong = low if low < 0 else high
        raise DataError(
            f"{file}: `image_labels` must be in 0..{len(names) - 1}; got {wrong} at position {labels.index(wrong)}."
        )
    groups: dict[str, list[str]] = {}
    folder = str(file.parent)
    for image, label in zip(images, labels, strict=True):
        group = groups.setdefault(names[label], [])
        if per_class is None or len(group) < per_class:
            group.append(os.path.join(folder, image))  # an absolute path is kept
    return groups


def _require_files(file: Path, images: Sequence[str]) -> None:
    """Raise `DataError` with the first image that does not exist and the number of missing images.

    Missing images are counted by listing each folder once: a million look-ups of missing files take minutes on a
    network disk.
    """
    first = next((image for image in images if not os.path.isfile(image)), None)
    if first is None:
        return
    present: dict[str, set[str]] = {}
    absent = 0
    for image in images:
        folder, name = os.path.split(image)
        if folder not in present:
            present[folder] = _file_names(folder)
        absent += name not in present[folder]
    raise DataError(
        f"{file}: {max(absent, 1)} of the {len(images)} listed images do not exist, the first is {first}. "
        "Paths are relative to the list."
    )


def _file_names(folder: str) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (OSError, ValueError):  # ValueError: a NUL, or text that is not valid Unicode
        return set()


def _load(file: Path, max_bytes: int) -> dict[str, list[Any]]:
    try:
        with file.open("rb") as opened:
            text = opened.read(max_bytes + 1)
        if len(text) > max_bytes:
            raise DataError(
                f"{file}: has {file.stat().st_size:,} bytes; at most {max_bytes:,} bytes of a file list are read, "
                f"1/{TEXT_SHARE} of `max_bytes`. Allow more with the option `max_bytes` of `images`."
            )
        content = json.loads(text.decode("utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such file.") from error
    except DataError:
        raise
    except RecursionError as error:
        raise DataError(f"{file}: the JSON is nested too deeply; a file list is one object of lists.") from error
    except (ValueError, MemoryError) as error:
        raise DataError(f"{file}: is not valid JSON ({error}).") from error
    for key, kind, word in (
        ("label_names", str, "text"),
        ("image_names", str, "text"),
        ("image_labels", int, "integers"),
    ):
        values = content.get(key) if isinstance(content, dict) else None
        if not isinstance(values, list):
            raise DataError(f"{file}: needs the key `{key}` with a list; got {type(values).__name__}.")
        for item in values:
            if not isinstance(item, kind) or isinstance(item, bool):
                raise DataError(f"{file}: `{key}` must be a list of {word}; got {reprlib.repr(item)} in it.")
    return dict(content)
