"""Read images from folders, one folder per class."""

from __future__ import annotations

from pathlib import Path

from gradhomog.errors import DataError
from gradhomog.experiments.data.domains._picture_set import PictureSet
from gradhomog.experiments.data.domains._pictures import EXTENSIONS
from gradhomog.experiments.data.domains.class_images import CLASS_SPLITS


def list_folder(root: Path, per_class: int | None) -> PictureSet:
    """List `root/<class>/*.png` or, with an official split, `root/{train,val,test}/<class>/*.png`.

    Files are in the order of their names, at most `per_class` of each class. Names that begin with a dot, and
    files without the extension of a picture format, are ignored.

    Raises:
        DataError: the folders have another structure; the message contains the path and the reason.
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
    groups = {folder.name: [str(path) for path in _pictures(folder)[:per_class]] for folder in chosen}
    return PictureSet(root, root.resolve().name, groups, splits if official else None)


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
