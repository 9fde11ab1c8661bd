"""Read lists of images: text within a size limit, and paths that must exist."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from gradhomog.errors import DataError
from gradhomog.experiments.data.npz import MAX_BYTES

TEXT_SHARE = 64
"""A list is limited to `max_bytes` / 64: parsed, `[[]],[[]]` takes 37 bytes per character, plus the text itself."""

MAX_TEXT_BYTES = MAX_BYTES // TEXT_SHARE
"""Default limit on one file list: 64 MiB."""


def read_text(file: Path, max_bytes: int = MAX_TEXT_BYTES, *, encoding: str = "utf-8") -> str:
    """Return the text of a file list.

    Raises:
        DataError: the file is missing, larger than `max_bytes`, or not text of this encoding.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such file.") from error
    if len(text) > max_bytes:
        raise DataError(
            f"{file}: has {file.stat().st_size:,} bytes; at most {max_bytes:,} bytes of a file list are read, "
            f"1/{TEXT_SHARE} of `max_bytes`. Allow more with the option `max_bytes` of `images`."
        )
    try:
        return text.decode(encoding)
    except UnicodeDecodeError as error:
        if file.suffix.lower() == ".json":
            raise DataError(f"{file}: is not valid JSON ({error}).") from error
        raise DataError(
            f"{file}: must be UTF-8 text; byte {error.start} is {text[error.start]:#04x}. Convert the file to UTF-8."
        ) from error


def read_table(file: Path, columns: Sequence[str], max_bytes: int = MAX_TEXT_BYTES) -> list[dict[str, str]]:
    """Return the rows of a CSV file by the names of its first line, which must include `columns`.

    Raises:
        DataError: as for `read_text`; the file is empty, a column is missing, or a row has another length.
    """
    text = read_text(file, max_bytes, encoding="utf-8-sig")  # spreadsheets write a byte order mark
    if text.lstrip()[:1] == "<":
        raise DataError(f"{file}: is a web page, not a CSV file. Download it again; the server returned an error page.")
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise DataError(f"{file}: is not a CSV file ({error}). Download it again.") from error
    lines = [line for line in lines if line]
    header = [name.strip() for name in lines[0]] if lines else []
    if missing := [name for name in columns if name not in header]:
        raise DataError(
            f"{file}: the first line must have the columns {', '.join(columns)}; missing: {', '.join(missing)}; "
            f"found: {', '.join(header)[:200] or 'an empty file'}."
        )
    for number, line in enumerate(lines[1:], start=2):
        # The published table of ChestX has a comma at the end of each row.
        if len(line) != len(header) and (len(line) < len(header) or any(line[len(header) :])):
            raise DataError(
                f"{file}: row {number} has {len(line)} values for {len(header)} columns; the file may be cut off. "
                "Download it again."
            )
    return [dict(zip(header, line, strict=False)) for line in lines[1:]]


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
