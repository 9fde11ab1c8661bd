"""List benchmarks whose classes are in a table: ISIC, ChestX and Stanford Cars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradhomog import DataError
from gradhomog_data.benchmarks.catalogue import Published
from gradhomog_data.benchmarks.listing import Listing, by_rule, list_class_folders, pictures, subfolders
from gradhomog_data.domains._pictures import describe_content
from gradhomog_data.domains._text_files import file_names, read_table

_MAT_BYTES = 2**22
"""Largest .mat file that is read: those of Stanford Cars have 0.6 MB, and compressed ones expand a thousand times."""


def list_isic(benchmark: Published, folder: Path) -> Listing:
    """List the images of ISIC 2018; the class of an image is the column with 1 in its row, or its folder.

    Raises:
        DataError: the table is missing or damaged, a row has not exactly one 1, or an image does not exist.
    """
    if subfolders(folder):  # sorted into one folder per class
        return list_class_folders(benchmark, folder)
    stem = folder.name.removesuffix("_Input") + "_GroundTruth"
    tables = (folder.parent / stem / f"{stem}.csv", folder.parent / f"{stem}.csv")
    table = next((path for path in tables if path.is_file()), tables[0])
    columns = benchmark.class_names
    classes: dict[str, list[str]] = {name: [] for name in columns}
    for number, row in enumerate(read_table(table, ("image", *columns)), start=2):
        marked = [name for name in columns if row[name].strip() in ("1", "1.0")]
        if len(marked) != 1:
            raise DataError(f"{table}: row {number}, {row['image']!r}, must have one class; found {len(marked)}.")
        classes[marked[0]].append(f"{row['image']}.jpg")
    _require(table, folder, classes.values(), file_names(folder))
    return by_rule(benchmark, folder, {name: sorted(images) for name, images in classes.items()})


def list_chestx(benchmark: Published, table: Path) -> Listing:
    """List the images of ChestX with exactly one finding, which is one of seven; or class folders.

    Raises:
        DataError: the table is missing or damaged, or an image does not exist.
    """
    if table.is_dir():  # sorted into one folder per class
        return list_class_folders(benchmark, table)
    folder = table.parent
    places = [path for path in ("images", *subfolders(folder)) if path == "images" or path.startswith("images_")]
    found: dict[str, str] = {}
    for place in dict.fromkeys(places):
        inner = f"{place}/images" if (folder / place / "images").is_dir() else place  # images_001/images of Kaggle
        if (folder / inner).is_dir():
            found |= {name: f"{inner}/{name}" for name in pictures(folder / inner)}
    classes: dict[str, list[str]] = {name: [] for name in benchmark.class_names}
    for row in read_table(table, ("Image Index", "Finding Labels")):
        if row["Finding Labels"] in classes:
            classes[row["Finding Labels"]].append(row["Image Index"])
    _require(table, folder / "images", classes.values(), found)
    paths = {name: [found[image] for image in sorted(images)] for name, images in classes.items()}
    return by_rule(benchmark, folder, paths)


def list_cars(benchmark: Published, folder: Path) -> Listing:
    """List the training images of Stanford Cars, with classes in the order of `cars_meta.mat`, or class folders.

    Raises:
        DataError: a table is missing or damaged, or an image does not exist.
    """
    if subfolders(folder):
        return list_class_folders(benchmark, folder)
    places = [folder.parent / name for name in ("devkit", "car_devkit/devkit")]
    devkit = next((path for path in places if path.is_dir()), places[0])
    names = [str(name) for name in _read_mat(devkit / "cars_meta.mat", "class_names")]
    table = devkit / "cars_train_annos.mat"
    classes: dict[str, list[str]] = {name: [] for name in names}
    if len(classes) < len(names):
        raise DataError(f"{devkit / 'cars_meta.mat'}: has a class name more than once. Download it again.")
    for row in _read_mat(table, "annotations", ("class", "fname")):
        index = int(row["class"])
        if not 1 <= index <= len(names):
            raise DataError(f"{table}: classes must be in 1..{len(names)}; image {row['fname']} has {index}.")
        classes[names[index - 1]].append(str(row["fname"]))
    _require(table, folder, classes.values(), file_names(folder))
    return by_rule(benchmark, folder, {name: sorted(images) for name, images in classes.items()})


def _read_mat(file: Path, name: str, fields: tuple[str, ...] = ()) -> Any:
    from scipy.io import loadmat

    if not file.is_file():
        raise DataError(f"{file}: there is no such file; it is in the archive car_devkit.tgz, beside the pictures.")
    if (size := file.stat().st_size) > _MAT_BYTES:
        raise DataError(f"{file}: has {size:,} bytes; the tables of Stanford Cars have at most {_MAT_BYTES:,}.")
    try:
        value = loadmat(file, squeeze_me=True, variable_names=[name]).get(name)
    except Exception as error:  # the parser raises anything for damaged files
        content = describe_content(file) or str(error)
        raise DataError(f"{file}: cannot be read as a .mat file ({content}). Download it again.") from error
    missing = [field for field in fields if value is None or field not in (value.dtype.names or ())]
    if value is None or value.ndim != 1 or missing:
        raise DataError(
            f"{file}: needs the variable `{name}`"
            + (f" with the fields {', '.join(fields)}" if fields else "")
            + "; the file has other content. Download it again."
        )
    return value


def _require(table: Path, folder: Path, groups: Iterable[list[str]], present: set[str] | Mapping[str, str]) -> None:
    """Raise `DataError` if a row refers to an image that does not exist, or two rows to the same image."""
    images = [image for group in groups for image in group]
    if absent := [image for image in images if image not in present]:
        raise DataError(
            f"{table}: {len(absent)} of the {len(images)} listed images are not in {folder}, the first is "
            f"{absent[0]}. The download of the pictures is incomplete."
        )
    if len(set(images)) < len(images):
        raise DataError(f"{table}: an image occurs in two rows. Download it again.")
