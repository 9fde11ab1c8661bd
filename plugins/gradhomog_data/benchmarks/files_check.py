"""Check the files of a benchmark: counts, splits, readable images, digests."""

import hashlib
import json
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from gradhomog import DataError, files
from gradhomog_data.benchmarks import SPLITS, Benchmark, BenchmarkCheck, find_benchmark
from gradhomog_data.benchmarks.folders import MANIFEST, Listing, advice, find_forms, list_published
from gradhomog_data.domains import _formats
from gradhomog_data.domains._picture_set import PictureSet
from gradhomog_data.domains._pictures import check_picture, describe_content, read_picture, require_pillow
from gradhomog_data.domains._read_npz import read_classes
from gradhomog_data.domains._text_files import MAX_TEXT_BYTES
from gradhomog_data.domains.class_images import split_classes

_TO_PUBLISHED = {"train": "base", "val": "val", "test": "novel"}

_REPORTED = 5
"""Damaged images that are listed, further ones are counted; unknown classes that are listed."""


def check(root: Path, benchmark: Benchmark, *, full: bool = False) -> BenchmarkCheck:
    """Check the form of a benchmark that `find` returns first, for any size.

    The header of every image is read; `full` decodes every image. A progress bar appears after one second.
    """
    result = BenchmarkCheck(benchmark.name, published_classes=benchmark.classes, published_images=benchmark.images)
    form, path = next(find_forms(root, benchmark, None), (None, root))
    if form is None:
        result.problems, result.advice = _check_archives(root, benchmark)
    else:
        result.path, result.form = str(path), form
        try:
            _check_form(root, benchmark, form, path, full, result)
        except DataError as error:
            result.problems.append(str(error))
        except OSError as error:
            result.problems.append(f"{path}: cannot be read ({error.strerror or error}).")
    if result.problems:
        result.status = "damaged"
    return result


def count(name: str, path: Path) -> BenchmarkCheck:
    """Compare the classes and the number of images of a file or folder with the published ones of a benchmark.

    Labels or lists are read, not the images.

    Raises:
        DataError: the file or folder cannot be used.
    """
    benchmark = find_benchmark(name)
    result = BenchmarkCheck(benchmark.name, path=str(path))
    arrays = path.suffix.lower() == ".npz"
    listing = _list_arrays(path) if arrays else _from_pictures(_formats.list_pictures(path, None, files.MAX_BYTES))
    _compare(benchmark, listing, result)
    return result


def _check_form(root: Path, benchmark: Benchmark, form: str, path: Path, full: bool, result: BenchmarkCheck) -> None:
    if form == "arrays":
        listing = _list_arrays(path, full)
        result.sha256 = _file_digest(path)
    elif form == "published folders":
        listing = list_published(benchmark, path)
        result.advice = "" if benchmark.rule == "folders" else advice(root, benchmark.name)
    else:
        pictures = _formats.list_pictures(path, None, files.MAX_BYTES)
        listing = _from_pictures(pictures)
        if pictures.splits is None and benchmark.rule == "modulo":
            result.advice = f"Classes are split by name, not by the published rule. {advice(root, benchmark.name)}"
    result.sha256 = result.sha256 or listing.digest()
    _compare(benchmark, listing, result)
    if form == "file lists":
        result.problems += _check_manifest(path)
    if form != "arrays":
        require_pillow(path)
        paths = [listing.folder / image for images in listing.classes.values() for image in images]
        result.problems += _check_images(paths, benchmark.name, full)


def _from_pictures(pictures: PictureSet) -> Listing:
    names = sorted(pictures.groups)
    groups = {
        # Relative, so that the digest does not depend on the machine.
        name: [Path(os.path.relpath(path, pictures.path)).as_posix() for path in pictures.groups[name]]
        for name in names
    }
    own = None if pictures.splits is None else [pictures.splits[name] for name in names]
    return Listing(pictures.path, groups, _published_splits(names, own))


def _list_arrays(path: Path, full: bool = False) -> Listing:
    """List an array file, whose images are numbers; `full` decompresses them and compares their checksum."""
    with files.open_npz(path, max_bytes=2**40 if full else files.MAX_BYTES) as stored:
        labels, names, own = read_classes(path, stored)
        if full:
            stored.read("images")
    groups: dict[str, list[str]] = {name: [] for name in names}
    for row, label in enumerate(labels.tolist()):
        groups[names[label]].append(str(row))
    return Listing(path, groups, _published_splits(names, own))


def _published_splits(names: Sequence[str], own: Sequence[str] | None) -> dict[str, str]:
    splits = split_classes(names) if own is None else own
    return {name: _TO_PUBLISHED[split] for name, split in zip(names, splits, strict=True)}


def _compare(benchmark: Benchmark, listing: Listing, result: BenchmarkCheck) -> None:
    """Fill in the counts, the differences and the status of a result."""
    result.splits, result.classes = listing.counts(), len(listing.classes)
    result.images = sum(map(len, listing.classes.values()))
    splits = {split: result.splits[split]["classes"] for split in SPLITS}
    if result.classes != benchmark.classes:
        result.differences.append(_ratio(result.classes, benchmark.classes, "classes"))
    elif benchmark.rule != "novel" and not result.advice and splits != benchmark.splits:
        result.differences.append(f"splits of {_text(splits)} classes, published: {_text(benchmark.splits)}")
    if benchmark.images is not None and result.images != benchmark.images:
        result.differences.append(_ratio(result.images, benchmark.images, "images"))
    if others := _other_classes(benchmark, listing.classes):
        result.differences.append(f"unknown classes: {', '.join(others[:_REPORTED])}")
    more = result.classes > benchmark.classes or result.images > (benchmark.images or result.images)
    result.status = "other data" if others or more else "incomplete" if result.differences else "complete"


def _ratio(found: int, published: int, noun: str) -> str:
    return f"{found:,} of {published:,} {noun}" if found < published else f"{found:,} {noun}, published: {published:,}"


def _other_classes(benchmark: Benchmark, names: Iterable[str]) -> list[str]:
    """Return the names that are no classes of the benchmark, if its class names are known and these are not numbers."""

    def letters(name: str) -> str:
        return re.sub(r"[\W_]", "", name).lower()

    if not benchmark.class_names or all(re.fullmatch(r"\D*\d+", name) for name in names):
        return []
    known = {letters(name) for name in benchmark.class_names}
    return [name for name in names if letters(name) not in known]


def _text(counts: dict[str, int]) -> str:
    return ", ".join(f"{split} {count}" for split, count in counts.items())


def _check_manifest(folder: Path) -> Iterable[str]:
    if not (folder / MANIFEST).is_file():
        return
    try:
        digests = json.loads(files.read_text(folder / MANIFEST, MAX_TEXT_BYTES))["sha256"]
        expected = {str(name): str(digest) for name, digest in digests.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        yield f"{folder / MANIFEST}: is damaged ({error}). Write the lists again."
        return
    for name, digest in expected.items():
        path = folder / name
        if not path.is_file() or _file_digest(path) != digest:
            yield f"{path}: differs from the manifest, which was written with it. Write the lists again."


def _check_images(files: Sequence[Path], name: str, full: bool) -> Iterable[str]:
    damaged = 0
    bar = tqdm(
        files, desc=f"checking {name}", unit="image", delay=1, leave=False, dynamic_ncols=True, disable=None,
        file=sys.stderr,
    )  # fmt: skip
    for path in bar:
        try:
            check_picture(path)
            if full:
                read_picture(path, 1)
        except DataError as error:
            damaged += 1
            if damaged <= _REPORTED:
                yield str(error)
    if damaged > _REPORTED:
        yield f"{damaged - _REPORTED} more images cannot be read, {damaged} of {len(files)}."


def _check_archives(root: Path, benchmark: Benchmark) -> tuple[list[str], str]:
    """Return problems of archives that are not unpacked, and what to do."""
    problems, whole = [], []
    for path in (folder / name for folder in (root, root / benchmark.name) for name in benchmark.archives):
        if path.is_file():
            if content := describe_content(path):
                problems.append(f"{path}: is {content}. Download it again.")
            elif not (zipfile.is_zipfile(path) if path.suffix == ".zip" else tarfile.is_tarfile(path)):
                problems.append(f"{path}: is not an archive, or is damaged. Download it again.")
            else:
                whole.append(path)
    if whole:
        return problems, f"Unpack {whole[0]} below {root}."
    return problems, f"Obtain it from {benchmark.source}. Expected: {benchmark.layout}."


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
