"""The domain `images:PATH`: one's own pictures, from an .npz file, folders, or JSON file lists."""

from __future__ import annotations

from pathlib import Path

from gradhomog.errors import DataError, OptionError
from gradhomog.experiments.data.domains import _options
from gradhomog.experiments.data.domains._pictures import require_pillow
from gradhomog.experiments.data.domains._read_folder import read_folder
from gradhomog.experiments.data.domains._read_json import FILES, read_json
from gradhomog.experiments.data.domains._read_npz import read_npz
from gradhomog.experiments.data.domains.class_images import ClassImages
from gradhomog.hooks import hookimpl
from gradhomog.specs import DomainSpec


def images(variant: str, *, size: int = 84, per_class: int | None = None) -> ClassImages:
    """Read a data set into memory, as uint8, at the size that the network sees.

    Args:
        variant: path of an `.npz` file (see `read_npz`), of a folder of class folders (`read_folder`), of a `.json`
            file list, or of a folder with base.json, val.json or novel.json (`read_json`). Its stem is the name.
        size: side in pixels, 1..1024; pictures are cropped to their central square and resized without aliasing.
        per_class: of folders and lists, read only the first so many pictures of each class; None reads all.

    Raises:
        OptionError: an option is out of range. DataError: a file is missing, damaged or inconsistent.
    """
    _options.integer("size", size, low=1, high=1024)
    if per_class is not None:
        _options.integer("per_class", per_class, low=1)
    if not variant:
        raise OptionError("`images` needs a path, as in images:pictures/birds.npz; got nothing after the name.")
    path = Path(variant).expanduser()
    if path.suffix.lower() == ".npz" and not path.is_dir():
        if per_class is not None:
            raise OptionError(f"`per_class` must be left out for .npz files; got {per_class} with {path}.")
        return read_npz(path, size)
    listed = path.suffix.lower() == ".json" or any((path / name).is_file() for name in FILES)
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder.")
    if not listed and not path.is_dir():
        raise DataError(f"{path}: must be an .npz file, a .json file list or a folder; got {path.suffix or 'a file'}.")
    require_pillow(path)
    return read_json(path, size, per_class) if listed else read_folder(path, size, per_class)


@hookimpl
def gradhomog_domain() -> DomainSpec:
    return DomainSpec(
        factory=images,
        summary="your own pictures: an .npz file, a folder of class folders, or JSON file lists",
        reference="file lists as in Chen, Liu, Kira, Wang, Huang 2019, arXiv:1904.04232",
    )
