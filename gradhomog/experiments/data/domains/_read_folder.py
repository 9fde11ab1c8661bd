"""Read images from folders, one folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradhomog.errors import DataError
from gradhomog.experiments.data.domains._pictures import EXTENSIONS, read_pictures
from gradhomog.experiments.data.domains.class_images import CLASS_SPLITS, ClassImages


def read_folder(root: Path, size: int, per_class: int | None, max_bytes: int) -> ClassImages:
    """Read `root/<class>/*.png` or, with an official split, `root/{train,val,test}/<class>/*.png`.

    Files are read in the order of their names, at most `per_class` of each class. Names that begin with a dot, and
    files without the extension of a picture format, are ignored.

    Raises:
        DataError: the images cannot be read; the message contains the path and the reason.
    """
    folders = _subfolders(root)
    if not folders:
        raise DataError(f"{root}: contains no folders; one folder of pictures per class is required.")
    official = all(folder.name in CLASS_SPLITS for folder in folders)
    classes = [(split, folder) for split in folders for folder in _subfolders(split)] if official else []
    splits = {folder.name: split.name for split, folder in classes}
    if len(splits) < len(classes):
        twice = sorted({folder.name for split, folder in classes if splits[folder.name] != split.name})
        raise DataError(f"{root}: splits must not share a class; {twice[0]!r} is in more than one of them.")
    if official and not classes:
        raise DataError(
            f"{root}: split folders such as {folders[0].name}/ contain no folders; one per class is required."
        )
    chosen = sorted([folder for _, folder in classes] if official else folders, key=lambda folder: folder.name)
    paths = [_pictures(folder)[:per_class] for folder in chosen]
    return ClassImages(
        root.resolve().name,
        read_pictures(root, [path for group in paths for path in group], size, max_bytes),
        np.repeat(np.arange(len(paths)), [len(group) for group in paths]),
        [folder.name for folder in chosen],
        class_split=[splits[folder.name] for folder in chosen] if official else None,
        source=str(root),
    )


def _subfolders(folder: Path) -> list[Path]:
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
