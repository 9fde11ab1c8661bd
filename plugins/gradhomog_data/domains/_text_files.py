"""Read lists of images, JSON and CSV: text within a size limit, and paths that must exist."""

import csv
import io
import json
import os
import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradhomog import DataError, files

TEXT_SHARE = 64
"""A list is limited to `max_bytes` / 64: parsed, `[[]],[[]]` takes 37 bytes per character, plus the text itself."""

MAX_TEXT_BYTES = files.MAX_BYTES // TEXT_SHARE
"""Default limit on one file list: 64 MiB."""


_ADVICE = f"The limit of a file list is 1/{TEXT_SHARE} of the option `max_bytes` of `images`."


def read_lines(file: Path, max_bytes: int = MAX_TEXT_BYTES, advice: str = _ADVICE) -> Iterator[list[str]]:
    """Yield the lines of a CSV file that are not empty; the names of columns, first, without spaces around them.

    Raises:
        DataError: as for `files.read_text`; the file is a web page or not CSV.
    """
    text = files.read_text(file, max_bytes, advice)
    if text.lstrip()[:1] == "<":
        raise DataError(f"{file}: is a web page, not a CSV file. Download it again; the server returned an error page.")
    lines = filter(None, csv.reader(io.StringIO(text, newline=""), strict=True))
    try:
        yield [name.strip() for name in next(lines, [])]
        yield from lines
    except csv.Error as error:
        raise DataError(f"{file}: is not a CSV file ({error}). Download it again.") from error


def read_table(file: Path, columns: Sequence[str], max_bytes: int = MAX_TEXT_BYTES) -> list[dict[str, str]]:
    """Return the rows of a CSV file by the names of its first line, which must include `columns`.

    Raises:
        DataError: as for `read_lines`; the file is empty, a column is missing, or a row has another length.
    """
    header, *lines = read_lines(file, max_bytes)
    if missing := [name for name in columns if name not in header]:
        raise DataError(
            f"{file}: the first line must have the columns {', '.join(columns)}; missing: {', '.join(missing)}; "
            f"found: {', '.join(header)[:200] or 'an empty file'}."
        )
    for number, line in enumerate(lines, start=2):
        # The published table of ChestX has a comma at the end of each row.
        if len(line) != len(header) and (len(line) < len(header) or any(line[len(header) :])):
            raise DataError(
                f"{file}: row {number} has {len(line)} values for {len(header)} columns; the file may be cut off. "
                "Download it again."
            )
    return [dict(zip(header, line, strict=False)) for line in lines]


def require_files(file: Path, images: Sequence[str], advice: str = "Paths are relative to the list.") -> None:
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
            present[folder] = file_names(folder)
        absent += name not in present[folder]
    raise DataError(
        f"{file}: {max(absent, 1)} of the {len(images)} listed images do not exist, the first is {first}. {advice}"
    )


def file_names(folder: str | os.PathLike[str]) -> set[str]:
    """Return the names of the files of a folder; empty if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (OSError, ValueError):  # ValueError: a NUL, or text that is not valid Unicode
        return set()


def read_json(file: Path, per_class: int | None, max_bytes: int) -> dict[str, list[str]]:
    """Return the paths of the images of each class of a list.

    A list is `{"label_names": [...], "image_names": [...], "image_labels": [...]}`: image i, a path relative to the
    list or absolute, with `/` or the `\\` of Windows, belongs to class `label_names[image_labels[i]]`. Classes without
    images in a list are ignored, because the lists of the three splits share their `label_names`. At most the first
    `per_class` images of a class are read.

    Raises:
        DataError: the list cannot be read, or an image does not exist; the message contains the path and the reason.
    """
    content = _load(file, max_bytes // TEXT_SHARE)
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
    paths = [_with_slashes(os.path.join(str(file.parent), image)) for image in images]  # an absolute path is kept
    groups = _group(paths, [names[label] for label in labels], per_class)
    require_files(file, [path for group in groups.values() for path in group])
    return groups


def _with_slashes(path: str) -> str:
    """Return a path of a list that was written on Windows with `/`, unless there is a file of this very name."""
    return path if "\\" not in path or os.path.isfile(path) else path.replace("\\", "/")


def _group(paths: Sequence[str], classes: Sequence[str], per_class: int | None) -> dict[str, list[str]]:
    """Return the paths of each class, at most the first `per_class`."""
    groups: dict[str, list[str]] = {}
    for path, name in zip(paths, classes, strict=True):
        groups.setdefault(name, []).append(path)
    return {name: group[:per_class] for name, group in groups.items()}


def _load(file: Path, max_bytes: int) -> dict[str, list[Any]]:
    text = files.read_text(file, max_bytes, _ADVICE)
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
    rows, (image_column, label_column) = _rows(file, max_bytes // TEXT_SHARE)
    if not rows:
        raise DataError(f"{file}: has no rows after its first line; the file may be cut off. Download it again.")
    pairs = [(row[image_column].strip(), row[label_column].strip()) for row in rows]
    for number, (image, label) in enumerate(pairs, start=2):
        if not image or not label:
            raise DataError(f"{file}: row {number} needs a file and a class; got {image!r} and {label!r}.")
    template = _template(str(file.parent), pairs)
    paths = [_place(str(file.parent), template, image, label) for image, label in pairs]
    for path, count in Counter(paths).items():
        if count > 1:
            raise DataError(f"{file}: image {path} occurs more than once. Remove the repeated rows.")
    groups = _group(paths, [label for _, label in pairs], per_class)
    images = [path for group in groups.values() for path in group]
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
            if os.path.isfile(_place(folder, template, image, label)):
                return template
    return _FOLDERS[0]


def _place(folder: str, template: str, image: str, label: str) -> str:
    return _with_slashes(os.path.join(folder, template.format(image=image, label=label)))
