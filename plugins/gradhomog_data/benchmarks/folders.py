"""Find a benchmark below a data root, and list its images by class with the published split."""

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradhomog import DataError
from gradhomog_data.benchmarks import SPLITS, Benchmark, split_of
from gradhomog_data.domains import _formats
from gradhomog_data.domains._formats import pictures, subfolders
from gradhomog_data.domains._text_files import file_names, read_table


@dataclass(frozen=True)
class Listing:
    """Images of a benchmark.

    Attributes:
        folder: the folder that paths are relative to.
        classes: paths of the images of each class, with `/`, sorted; classes in the order of their labels.
        splits: `"base"`, `"val"` or `"novel"` for each class.
    """

    folder: Path
    classes: Mapping[str, Sequence[str]]
    splits: Mapping[str, str]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of classes and images of each split."""
        return {
            split: {
                "classes": sum(own == split for own in self.splits.values()),
                "images": sum(len(images) for name, images in self.classes.items() if self.splits[name] == split),
            }
            for split in SPLITS
        }

    def digest(self) -> str:
        """Return the SHA-256 of all splits, classes and relative paths."""
        digest = hashlib.sha256()
        for name, images in self.classes.items():
            for image in images:
                digest.update(f"{self.splits[name]}\t{name}\t{image}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()


def by_rule(benchmark: Benchmark, folder: Path, classes: Mapping[str, Sequence[str]]) -> Listing:
    """Return the listing of classes, after checking their number, with the split rule of the benchmark.

    Raises:
        DataError: the number of classes differs from the published one, which would move classes to other splits; or
            a class has no image.
    """
    if len(classes) != benchmark.classes:
        raise DataError(
            f"{folder}: {benchmark.title} has {benchmark.classes} classes; found {len(classes)}. "
            f"The download is incomplete, or the folder has other content. Expected: {benchmark.layout}."
        )
    splits = {name: split_of(benchmark.rule, index) for index, name in enumerate(classes)}
    return _listing(folder, classes, splits)


def _listing(folder: Path, classes: Mapping[str, Sequence[str]], splits: Mapping[str, str]) -> Listing:
    if empty := [name for name, images in classes.items() if not images]:
        raise DataError(
            f"{folder}: class {empty[0]!r} has no images ({len(empty)} of {len(classes)} classes are empty). "
            "Download it again."
        )
    return Listing(folder, classes, splits)


PLACES_IMAGES = 200
"""Images of each class of Places, the first ones by name, as in the lists of Tseng et al. 2020."""

PLANTAE_IMAGES = 600
"""Largest number of images of a species of Plantae, as in the lists of Tseng et al. 2020."""

SEED = 0
"""Seed of the choice of images of Plantae."""


def list_class_folders(benchmark: Benchmark, folder: Path) -> Listing:
    """List `<class>/*.jpg`, with classes in the order of their names; of Places the first 200 images of each."""
    count = PLACES_IMAGES if benchmark.name == "places" else None
    return by_rule(benchmark, folder, {name: _images(folder, name)[:count] for name in subfolders(folder)})


def list_plantae(benchmark: Benchmark, folder: Path) -> Listing:
    """List the most frequent species, at most 600 images of each, drawn with a seed.

    Deviations from the lists of Tseng et al. 2020:
    1. Species with equal numbers of images are in the order of their names; there, in the order of the file system.
    2. Images are drawn in the order of the SHA-256 of seed, species and file; there, without a seed.
    """
    species = {name: _images(folder, name) for name in subfolders(folder)}
    frequent = sorted(species, key=lambda name: (len(species[name]), name))[-benchmark.classes :]
    chosen = {}
    for name in frequent:
        drawn = sorted(
            species[name], key=lambda image: hashlib.sha256(f"{SEED}:{image}".encode(errors="surrogatepass")).digest()
        )
        chosen[name] = sorted(drawn[:PLANTAE_IMAGES])
    return by_rule(benchmark, folder, chosen)


def list_split_folders(benchmark: Benchmark, folder: Path) -> Listing:
    """List `{train,val,test}/<class>/*.jpg`; the folders are the published split.

    Raises:
        DataError: a split has another number of classes than the published one, or two splits share a class.
    """
    classes: dict[str, list[str]] = {}
    splits: dict[str, str] = {}
    for split, directory in zip(SPLITS, ("train", "val", "test"), strict=True):
        names = subfolders(folder / directory)
        if len(names) != benchmark.splits[split]:
            raise DataError(
                f"{folder / directory}: {benchmark.title} has {benchmark.splits[split]} classes in this split; found "
                f"{len(names)}. The download is incomplete, or the folder has other content. Download it again."
            )
        if shared := sorted(classes.keys() & set(names)):
            raise DataError(f"{folder / directory}: class {shared[0]!r} is also in another split. Remove one of them.")
        classes |= {name: _images(folder, f"{directory}/{name}") for name in names}
        splits |= dict.fromkeys(names, split)
    return _listing(folder, classes, splits)


def _images(folder: Path, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in pictures(folder / directory)]


MANIFEST = "manifest.json"
"""File beside the lists, with the split rule, the counts and the SHA-256 of each list."""


def list_files(benchmark: Benchmark, listing: Listing, folder: Path) -> tuple[dict[str, Any], dict[str, bytes | None]]:
    """Return the manifest and the files of `folder`: one list per split that has classes, and the manifest.

    A list has the format of Chen et al. 2019; it is None for a split without classes. The lists depend on the names of
    folders and files and on the place of the pictures relative to `folder`, not on the machine. Differences from the
    lists of published code: paths are relative to the list instead of absolute, and images are in the order of their
    names instead of a random order.
    """
    # The real path: `..` in a path through a symbolic link starts at its target.
    prefix = Path(os.path.relpath(os.path.abspath(listing.folder), os.path.realpath(folder))).as_posix()
    names = list(listing.classes)
    texts: dict[str, bytes | None] = {}
    for split in SPLITS:
        images = [
            (f"{prefix}/{image}", label)
            for label, name in enumerate(names)
            if listing.splits[name] == split
            for image in listing.classes[name]
        ]
        content = {
            "label_names": names,
            "image_names": [image for image, _ in images],
            "image_labels": [label for _, label in images],
        }
        texts[f"{split}.json"] = (json.dumps(content) + "\n").encode() if images else None
    counts = listing.counts()
    manifest = {
        "benchmark": benchmark.name,
        "rule": benchmark.split_rule,
        "order": benchmark.order,
        "seed": SEED if benchmark.name == "plantae" else None,
        "classes": len(names),
        "images": sum(count["images"] for count in counts.values()),
        "splits": counts,
        "sha256": {name: hashlib.sha256(text).hexdigest() for name, text in texts.items() if text is not None},
    }
    return manifest, texts | {MANIFEST: (json.dumps(manifest, indent=2) + "\n").encode()}


def list_isic(benchmark: Benchmark, folder: Path) -> Listing:
    """List the images of ISIC 2018; the class of an image is the column with 1 in its row.

    Raises:
        DataError: the table is missing or damaged, a row has not exactly one 1, or an image does not exist.
    """
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


def list_chestx(benchmark: Benchmark, table: Path) -> Listing:
    """List the images of ChestX with exactly one finding, which is one of seven.

    Raises:
        DataError: the table is missing or damaged, or an image does not exist.
    """
    folder = table.parent
    found: dict[str, str] = {}
    for place in subfolders(folder):
        if place == "images" or place.startswith("images_"):
            inner = f"{place}/images" if (folder / place / "images").is_dir() else place  # images_001/images of Kaggle
            found |= {name: f"{inner}/{name}" for name in pictures(folder / inner)}
    classes: dict[str, list[str]] = {name: [] for name in benchmark.class_names}
    for row in read_table(table, ("Image Index", "Finding Labels")):
        if row["Finding Labels"] in classes:
            classes[row["Finding Labels"]].append(row["Image Index"])
    _require(table, folder / "images", classes.values(), found)
    paths = {name: [found[image] for image in sorted(images)] for name, images in classes.items()}
    return by_rule(benchmark, folder, paths)


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


Reader = Callable[[Benchmark, Path], Listing]

_TABLES: dict[str, Reader] = {"isic": list_isic, "chestx": list_chestx}
"""Readers of benchmarks whose classes are in a table, unless their images were sorted into class folders."""

_FOLDERS: dict[str, Reader] = {"miniimagenet": list_split_folders, "plantae": list_plantae}
"""Readers of published folders; the others have one folder per class."""


def find(root: Path, benchmark: Benchmark, size: int) -> Path | None:
    """Return the path of a benchmark that the domain `images` can read at this size; None if it is not below `root`.

    The first of these exists:

    1. `<name>-<size>.npz`, `<name>.npz`;
    2. `filelists/<name>/` with base.json, val.json or novel.json;
    3. `<name>/` with such lists, or with train.csv, val.csv or test.csv;
    4. the published folders of miniImageNet, which include the split;
    5. `<name>/` with one folder per class, or with class folders in train, val and test;
    6. `<name>-<other size>.npz`, the largest, whose images are resized.

    Names of folders may have capitals, as in `filelists/miniImagenet`.

    Raises:
        DataError: only the published folders exist, from which lists with the
            published split must be written first.
    """
    for form, path in find_forms(root, benchmark, size):
        if form != "published folders" or benchmark.rule == "folders":
            return path
        raise DataError(
            f"{path}: {benchmark.title} has no file lists with the published split. {advice(root, benchmark.name)}"
        )
    return None


def advice(root: Path, name: str) -> str:
    """Return the command that writes the lists of a benchmark."""
    folder, out = shlex.quote(str(root)), shlex.quote(str(root / "filelists"))
    return f"Write them with: gradhomog data lists {folder} {name} --out {out}"


def find_forms(root: Path, benchmark: Benchmark, size: int | None) -> Iterator[tuple[str, Path]]:
    """Yield the forms of a benchmark below `root`, in the order of `find`; `size=None` finds arrays of any size."""
    name = benchmark.name
    arrays = {path: path.stem.removeprefix(f"{name}-") for path in root.glob(f"{name}-*.npz") if path.is_file()}
    sizes = {path: int(text) for path, text in arrays.items() if text.isdecimal()}
    yield from (("arrays", path) for path in sorted(sizes) if size in (None, sizes[path]))
    if (path := root / f"{name}.npz").is_file():
        yield "arrays", path
    lists, own = (_child(folder, name) for folder in (root / "filelists", root))
    if lists is not None and any((lists / file).is_file() for file in _formats.FILE_LISTS.files):
        yield "file lists", lists
    kind = _formats.detect_format(own) if own is not None else None
    if own is not None and kind in _formats.FORMATS:
        yield kind.name, own
    # Before class folders: `cub/CUB_200_2011/images` would otherwise be a class `CUB_200_2011` without pictures.
    if (published := find_published(root, benchmark)) is not None:
        yield "published folders", published
    elif own is not None and kind not in _formats.FORMATS and any(path.is_dir() for path in own.iterdir()):
        yield "class folders", own
    if size is not None:
        yield from (("arrays", path) for path in sorted(sizes, key=lambda path: -sizes[path]))


def find_published(root: Path, benchmark: Benchmark) -> Path | None:
    """Return the folder (for ChestX, the table) of a benchmark in its published layout.

    It is searched below `root`, `<name>/` and `filelists/<name>/source/`.
    """
    own = _child(root, benchmark.name)
    lists = _child(root / "filelists", benchmark.name)
    named = [folder for folder in (own, lists / "source" if lists is not None else None) if folder is not None]
    candidates = [base / folder for base in (root, *named) for folder in benchmark.folders]
    candidates += [base / folder for base in named for folder in benchmark.own_folders]
    return next((path for path in candidates if path.exists()), None)


def list_published(benchmark: Benchmark, path: Path) -> Listing:
    """List a benchmark from its published folders, with its split rule.

    Raises:
        DataError: a folder or table is missing, damaged or incomplete; the message contains the path and the reason.
    """
    try:
        if benchmark.name in _TABLES and not (path.is_dir() and subfolders(path)):  # not sorted into class folders
            return _TABLES[benchmark.name](benchmark, path)
        return _FOLDERS.get(benchmark.name, list_class_folders)(benchmark, path)
    except OSError as error:
        raise DataError(f"{error.filename or path}: cannot be read ({error.strerror or error}).") from error


def find_source(root: Path, benchmark: Benchmark) -> Path | None:
    """Return the published folders of a benchmark below `root`, or the class folders in `<name>/`."""
    forms = find_forms(root, benchmark, None)
    return next((path for form, path in forms if form in ("published folders", "class folders")), None)


def list_source(root: Path, benchmark: Benchmark) -> Listing:
    """List a benchmark from its published folders below `root`, or from class folders in `<name>/`.

    Raises:
        DataError: neither exists, or they are damaged or incomplete.
    """
    if (path := find_source(root, benchmark)) is not None:
        return list_published(benchmark, path)
    raise DataError(
        f"{root}: {benchmark.title} has no pictures here; expected {benchmark.layout}. It is obtained from "
        f"{benchmark.source}."
    )


def _child(folder: Path, name: str) -> Path | None:
    """Return a folder by its name, or by its name with capitals."""
    if (folder / name).is_dir():
        return folder / name
    if not folder.is_dir():
        return None
    return next((path for path in sorted(folder.iterdir()) if path.name.lower() == name and path.is_dir()), None)
