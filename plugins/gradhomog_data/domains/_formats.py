"""The formats of pictures on disk: how each is detected, read and limited."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from gradhomog import DataError
from gradhomog_data.domains._picture_set import PictureSet
from gradhomog_data.domains._pictures import EXTENSIONS, require_pillow
from gradhomog_data.domains._text_files import read_csv, read_json


def read_folder(root: Path, per_class: int | None, max_bytes: int) -> dict[str, list[str]]:
    """Return the pictures of each class of `root/<class>/*.png`; with an official split, `root` is that of one split.

    Files are in the order of their names, at most `per_class` of each class. Names that begin with a dot, files
    without the extension of a picture format, and empty folders are ignored. There is no limit on bytes, as no file is
    read.

    Raises:
        DataError: a class has other files, or folders, but no pictures; the message contains the path and the reason.
    """
    classes = {}
    for name in subfolders(root):
        folder = root / name
        if found := pictures(folder)[:per_class]:
            classes[name] = [str(folder / picture) for picture in found]
        elif content := [file for file in os.listdir(folder) if not file.startswith(".")]:
            raise DataError(
                f"{folder}: class {name!r} has no pictures; supported are {', '.join(EXTENSIONS)}; "
                f"found {', '.join(sorted({Path(file).suffix or file for file in content}))}."
            )
    return classes


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones and macOS's copies in archives."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(name for name in names if not name.startswith(".") and name != "__MACOSX")


def pictures(folder: Path) -> list[str]:
    """Return the names of the pictures of a folder, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
    return sorted(name for name in names if name.lower().endswith(EXTENSIONS))


class Format(NamedTuple):
    """A format of pictures.

    Attributes:
        name: its name in messages.
        files: the names of the files or folders of the official splits, and the split of each.
        read: called with one of these, with the limit on pictures per class and with `max_bytes`; returns the pictures
            of each class.
    """

    name: str
    files: Mapping[str, str]
    read: Callable[[Path, int | None, int], dict[str, list[str]]]


CLASS_FOLDERS = Format("class folders", {}, read_folder)
SPLIT_FOLDERS = Format("class folders", {"train": "train", "val": "val", "test": "test"}, read_folder)
FILE_LISTS = Format("file lists", {"base.json": "train", "val.json": "val", "novel.json": "test"}, read_json)
FORMATS = (FILE_LISTS, Format("CSV files", {"train.csv": "train", "val.csv": "val", "test.csv": "test"}, read_csv))
"""The formats that are detected by the names of files, in the order of the attempts; else class folders."""


def detect_format(path: Path) -> Format | None:
    """Return the format of a file or folder by the names of its files; None for a file of another kind."""
    if not path.is_dir():
        return FILE_LISTS if path.suffix.lower() == ".json" else None
    for kind in FORMATS:
        if any((path / name).is_file() for name in kind.files):
            return kind
    folders = subfolders(path)
    official = folders and all(folder in SPLIT_FOLDERS.files for folder in folders)
    return SPLIT_FOLDERS if official else CLASS_FOLDERS


def list_pictures(path: Path, per_class: int | None, max_bytes: int) -> PictureSet:
    """List the pictures of a folder or a file list, at most the first `per_class` of each class.

    Raises:
        DataError: the path does not exist or has another format, a list is damaged, two splits share a class, or Pillow
            is missing.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder.")
    kind = detect_format(path)
    if kind is None:
        raise DataError(f"{path}: must be an .npz file, a .json file list or a folder; got {path.suffix or 'a file'}.")
    require_pillow(path)
    official = path.is_dir() and bool(kind.files)
    files = [path / name for name in kind.files if (path / name).exists()] if official else [path]
    groups: dict[str, list[str]] = {}
    splits: dict[str, str] = {}
    for file in files:
        classes = kind.read(file, per_class, max_bytes)
        if shared := groups.keys() & classes.keys():
            name = min(shared)
            raise DataError(f"{file}: splits must not share a class; {name!r} is also in the split {splits[name]!r}.")
        groups |= classes
        splits |= dict.fromkeys(classes, kind.files.get(file.name, ""))
    if not groups:
        inner = f"split folders such as {files[0].name}/ contain no folders; one" if official else (
            "contains no folders of pictures; one folder of pictures"
        )  # fmt: skip
        raise DataError(f"{path}: {inner} per class is required.")
    name = path.resolve().name if path.is_dir() else path.stem
    return PictureSet(path, name, groups, splits if official else None)
