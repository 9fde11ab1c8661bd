"""Read images from CSV splits: `train.csv`, `val.csv` and `test.csv`, with pictures in `images/`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gradhomog import DataError
from gradhomog_data.domains._text_files import read_table, require_files

COLUMNS = (("filename", "label"), ("image_name", "class_name"))
"""Names of the columns with file and class: of Ravi and Larochelle's splits, and of the library easyfsl."""

_FOLDERS = ("images/{image}", "images/{label}/{image}", "{label}/{image}", "{image}")
"""Places of a picture relative to the list, in the order in which they are tried."""

_TRIED = 100
"""Rows that are tried before the pictures of a list are reported as missing."""


def read_csv(file: Path, per_class: int | None, max_bytes: int) -> dict[str, list[str]]:
    """Return the paths of the images of each class of a table.

    The columns are `filename,label` or `class_name,image_name`; others are ignored. Pictures are in `images/`, in
    `images/<class>/` or in `<class>/`. At most the first `per_class` images of a class are read.

    Raises:
        DataError: the table cannot be read, or an image does not exist or occurs twice.
    """
    rows, (image_column, label_column) = _rows(file, max_bytes)
    if not rows:
        raise DataError(f"{file}: has no rows after its first line; the file may be cut off. Download it again.")
    pairs = [(row[image_column].strip(), row[label_column].strip()) for row in rows]
    for number, (image, label) in enumerate(pairs, start=2):
        if not image or not label:
            raise DataError(f"{file}: row {number} needs a file and a class; got {image!r} and {label!r}.")
    template, groups, seen = _template(str(file.parent), pairs), dict[str, list[str]](), set[str]()
    for image, label in pairs:
        path = os.path.join(str(file.parent), template.format(image=image, label=label))
        if path in seen:
            raise DataError(f"{file}: image {image} occurs more than once. Remove the repeated rows.")
        seen.add(path)
        group = groups.setdefault(label, [])
        if per_class is None or len(group) < per_class:
            group.append(path)
    images = [image for group in groups.values() for image in group]
    require_files(file, images, f"They are searched in {', '.join(_FOLDERS[:3])} beside the list.")
    return groups


def _rows(file: Path, max_bytes: int) -> tuple[list[dict[str, str]], tuple[str, str]]:
    """Return the rows of a list, and the names of its columns with file and class."""
    rows = read_table(file, (), max_bytes)
    for pair in COLUMNS:
        if not rows or set(pair) <= rows[0].keys():
            return rows, pair
    raise DataError(
        f"{file}: the first line must have the columns {' and '.join(COLUMNS[0])}, or {' and '.join(COLUMNS[1])}; "
        f"found: {', '.join(rows[0])[:200]}."
    )


def _template(folder: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return the first of the places in which one of the first pictures exists."""
    for template in _FOLDERS:
        for image, label in rows[:_TRIED]:
            if os.path.isfile(os.path.join(folder, template.format(image=image, label=label))):
                return template
    return _FOLDERS[0]
