"""Images from the JSON file lists of the few-shot field (`base.json`, `val.json`, `novel.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gradhomog.errors import DataError
from gradhomog.experiments.data.domains._pictures import read_pictures
from gradhomog.experiments.data.domains.class_images import ClassImages

FILES = {"base.json": "train", "val.json": "val", "novel.json": "test"}
"""The file names of the field, and the split that each is."""

Group = tuple[str, list[Path]]


def read_json(path: Path, size: int, per_class: int | None) -> ClassImages:
    """Read one list, whose classes have no official split, or a folder with at least one of the three.

    A list is `{"label_names": [...], "image_names": [...], "image_labels": [...]}`: image i, a path relative to the
    list or absolute, belongs to class `label_names[image_labels[i]]`. A class without images in a list is not part of
    it, as the lists of the three splits share their `label_names`. Of a class at most the first `per_class` are read.

    Raises:
        DataError: with the path of the list and the reason.
    """
    lists = [path / name for name in FILES if (path / name).is_file()] if path.is_dir() else [path]
    groups: dict[str, list[Path]] = {}
    splits: dict[str, str] = {}
    for file in lists:
        for name, images in _read_list(file, per_class):
            if name in groups:
                raise DataError(
                    f"{file}: splits must not share a class; {name!r} is also in another list of the folder."
                )
            groups[name], splits[name] = images, FILES.get(file.name, "")
    names = sorted(groups)
    return ClassImages(
        path.resolve().name if path.is_dir() else path.stem,
        read_pictures((image for name in names for image in groups[name]), size),
        np.repeat(np.arange(len(names)), [len(groups[name]) for name in names]),
        names,
        class_split=[splits[name] for name in names] if path.is_dir() else None,
        source=str(path),
    )


def _read_list(file: Path, per_class: int | None) -> list[Group]:
    content = _load(file)
    names, images, labels = (content[key] for key in ("label_names", "image_names", "image_labels"))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{file}: `label_names` must differ from each other; {twice!r} occurs more than once.")
    if len(images) != len(labels) or not images:
        raise DataError(
            f"{file}: `image_names` and `image_labels` must be of one length, at least 1; "
            f"got {len(images)} and {len(labels)}."
        )
    groups: list[Group] = [(name, []) for name in names]
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        if not 0 <= label < len(names):
            raise DataError(f"{file}: `image_labels` must lie in 0..{len(names) - 1}; got {label} at position {index}.")
        groups[label][1].append(file.parent / image)  # an absolute path stays what it is
    groups = [(name, paths[:per_class]) for name, paths in groups if paths]
    if absent := [path for _, paths in groups for path in paths if not path.is_file()]:
        raise DataError(f"{file}: {len(absent)} of the listed images do not exist, the first is {absent[0]}.")
    return groups


def _load(file: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such file.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: is not valid JSON ({error}).") from error
    for key, kind, word in (
        ("label_names", str, "text"),
        ("image_names", str, "text"),
        ("image_labels", int, "integers"),
    ):
        found = content.get(key) if isinstance(content, dict) else None
        if not isinstance(found, list):
            raise DataError(f"{file}: needs the key `{key}`, a list; got {type(found).__name__}.")
        if wrong := [item for item in found if not isinstance(item, kind) or isinstance(item, bool)]:
            raise DataError(f"{file}: `{key}` must be a list of {word}; got {wrong[0]!r} in it.")
    return dict(content)
