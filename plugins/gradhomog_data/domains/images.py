"""Domain `images:PATH`: your own pictures, from an .npz file, folders or file lists."""

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from gradhomog import DataError, DomainSpec, OptionError, files, hookimpl, validated
from gradhomog_data.domains._formats import list_pictures
from gradhomog_data.domains._read_npz import read_npz
from gradhomog_data.domains.class_images import ClassImages


@validated
def images(
    variant: str,
    *,
    size: Annotated[int, Interval(ge=1, le=1024)] = 84,
    per_class: Annotated[int, Ge(1)] | None = None,
    class_split: Literal["own", "train", "val", "test"] = "own",
    max_bytes: Annotated[int, Ge(1)] = files.MAX_BYTES,
) -> ClassImages:
    """Read a data set as uint8 at the network's input size.

    From 256 pictures on, those of folders and lists are decoded once into the cache folder and mapped from
    there; see `decode`. Arrays of `.npz` files, and fewer pictures, are held in memory.

    Args:
        variant: path of an `.npz` file (see `read_npz`), of a folder of class folders (`read_folder`), of a `.json`
            file list, or of a folder with base.json, val.json or novel.json (`read_json`) or with train.csv, val.csv
            or test.csv (`read_csv`). Its stem is the name of the domain.
        size: side in pixels, 1..1024; pictures are cropped to their central square and resized without aliasing.
        per_class: number of pictures of each class to read, except from `.npz` files, the first ones; None reads all.
        class_split: `"own"` is the official split of the data, or 50/25/25; another value is the split of all classes.
            For leave-one-domain-out training on data of few classes, use all of them: `"train"`.
        max_bytes: limit in bytes, 4 GiB by default, on the arrays that are read from an `.npz` file, as their headers
            declare them, and on images that are held in memory. Reading uses up to twice as much memory. The
            limit of a file list is 1/64 of it, because parsed JSON takes up to 40 times its size. The limit of a
            picture is 89,478,485 pixels.

    Raises:
        OptionError: an option is out of range. DataError: a file is missing, damaged, inconsistent or too large.
    """
    if not variant or "\0" in variant:
        raise OptionError(f"`images` needs a path, as in images:pictures/birds.npz; got {variant or 'nothing'!r}.")
    try:
        path = Path(variant).expanduser()
    except RuntimeError as error:  # ~name/pictures, and no user has this name
        raise OptionError(f"`images`: {variant}: {error}") from error
    try:
        if path.suffix.lower() == ".npz" and not path.is_dir():
            if per_class is not None:
                raise OptionError(f"`per_class` must be omitted for .npz files; got {per_class} with {path}.")
            read = read_npz(path, size, max_bytes)
        else:
            read = list_pictures(path, per_class, max_bytes).open(size, max_bytes)
    except OSError as error:  # permission denied, a name that is too long, a folder removed while it is read
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error
    if class_split != "own":
        read.class_split = (class_split,) * len(read.class_names)
    return read


@hookimpl
def gradhomog_domain() -> DomainSpec:
    return DomainSpec(
        factory=images,
        summary="your own pictures: an .npz file, class folders, or JSON or CSV file lists",
        reference="file lists as in Chen, Liu, Kira, Wang, Huang 2019, arXiv:1904.04232",
    )
