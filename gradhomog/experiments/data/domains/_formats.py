"""Detect the format of a folder or file of pictures, and list its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from gradhomog.errors import DataError
from gradhomog.experiments.data.domains import _read_csv, _read_json, _read_pickles
from gradhomog.experiments.data.domains._picture_set import PictureSet
from gradhomog.experiments.data.domains._pictures import require_pillow
from gradhomog.experiments.data.domains._read_folder import list_folder

Format = Literal["file lists", "CSV files", "pickles", "class folders"]


def detect_format(path: Path) -> Format | None:
    """Return the format of a file or folder by the names of its files; None for a file of another kind."""
    if not path.is_dir():
        return "file lists" if path.suffix.lower() == ".json" else None
    files: tuple[tuple[Format, dict[str, str]], ...] = (
        ("file lists", _read_json.FILES),
        ("pickles", _read_pickles.FILES),
        ("CSV files", _read_csv.FILES),
    )
    return next((kind for kind, names in files if any((path / name).is_file() for name in names)), "class folders")


def list_pictures(path: Path, per_class: int | None, max_bytes: int) -> PictureSet:
    """List the pictures of a folder or a file list.

    Raises:
        DataError: the path does not exist or has another format, a list is damaged, or Pillow is missing.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder.")
    kind = detect_format(path)
    if kind is None:
        raise DataError(f"{path}: must be an .npz file, a .json file list or a folder; got {path.suffix or 'a file'}.")
    if kind == "pickles":
        return _read_pickles.list_pickles(path, per_class, max_bytes)
    require_pillow(path)
    if kind == "file lists":
        return _read_json.list_json(path, per_class, max_bytes)
    if kind == "CSV files":
        return _read_csv.list_csv(path, per_class, max_bytes)
    return list_folder(path, per_class)
