"""Read images from folders, one folder per class."""

from __future__ import annotations

from pathlib import Path

from gradhomog import DataError
from gradhomog_data.domains._pictures import EXTENSIONS


def read_folder(root: Path, per_class: int | None, max_bytes: int) -> dict[str, list[str]]:
    """Return the pictures of each class of `root/<class>/*.png`; with an official split, `root` is that of one split.

    Files are in the order of their names, at most `per_class` of each class. Names that begin with a dot, and
    files without the extension of a picture format, are ignored. There is no limit on bytes, as no file is read.

    Raises:
        DataError: a class has no pictures; the message contains the path and the reason.
    """
    return {folder.name: [str(path) for path in _pictures(folder)[:per_class]] for folder in subfolders(root)}


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    pictures = [path for path in files if path.suffix.lower() in EXTENSIONS]
    if not pictures:
        raise DataError(
            f"{folder}: class {folder.name!r} has no pictures; supported are {', '.join(EXTENSIONS)}; "
            f"found {', '.join(sorted({path.suffix or path.name for path in files})) or 'no files'}."
        )
    return pictures
