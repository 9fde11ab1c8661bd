"""Read lists of images: text within a size limit, and paths that must exist."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradhomog import DataError, files

TEXT_SHARE = 64
"""A list is limited to `max_bytes` / 64: parsed, `[[]],[[]]` takes 37 bytes per character, plus the text itself."""

MAX_TEXT_BYTES = files.MAX_BYTES // TEXT_SHARE
"""Default limit on one file list: 64 MiB."""


_ADVICE = f"The limit of a file list is 1/{TEXT_SHARE} of the option `max_bytes` of `images`."


def read_text(file: Path, max_bytes: int = MAX_TEXT_BYTES, *, encoding: str = "utf-8", advice: str = _ADVICE) -> str:
    """Return the text of a file, by default of a file list.

    Raises:
        DataError: the file is missing, not a regular file, larger than `max_bytes`, or not text of this encoding.
    """
    try:
        with files.open_regular(file, max_bytes, advice) as opened:
            text = opened.read()
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such file.") from error
    try:
        return text.decode(encoding)
    except UnicodeDecodeError as error:
        if file.suffix.lower() == ".json":
            raise DataError(f"{file}: is not valid JSON ({error}).") from error
        raise DataError(
            f"{file}: must be UTF-8 text; byte {error.start} is {text[error.start]:#04x}. Convert the file to UTF-8."
        ) from error


def read_lines(file: Path, max_bytes: int = MAX_TEXT_BYTES, advice: str = _ADVICE) -> Iterator[list[str]]:
    """Yield the lines of a CSV file that are not empty; the names of columns, first, without spaces around them.

    Raises:
        DataError: as for `read_text`; the file is a web page or not CSV.
    """
    text = read_text(file, max_bytes, encoding="utf-8-sig", advice=advice)  # spreadsheets write a byte order mark
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
