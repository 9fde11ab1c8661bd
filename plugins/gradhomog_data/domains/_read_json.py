"""Read images from JSON file lists, as used in few-shot learning (`base.json`, `val.json`, `novel.json`)."""

from __future__ import annotations

import json
import os
import reprlib
from collections import Counter
from pathlib import Path
from typing import Any

from gradhomog import DataError
from gradhomog_data.domains._text_files import read_text, require_files


def read_json(file: Path, per_class: int | None, max_bytes: int) -> dict[str, list[str]]:
    """Return the paths of the images of each class of a list.

    A list is `{"label_names": [...], "image_names": [...], "image_labels": [...]}`: image i, a path relative to the
    list or absolute, belongs to class `label_names[image_labels[i]]`. Classes without images in a list are ignored,
    because the lists of the three splits share their `label_names`. At most the first `per_class` images of a class are
    read.

    Raises:
        DataError: the list cannot be read, or an image does not exist; the message contains the path and the reason.
    """
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
    require_files(file, [image for images in groups.values() for image in images])
    return groups


def _load(file: Path, max_bytes: int) -> dict[str, list[Any]]:
    text = read_text(file, max_bytes)
    try:
        content = json.loads(text)
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
