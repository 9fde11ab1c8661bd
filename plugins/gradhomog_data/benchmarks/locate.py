"""Find a benchmark below a data root, and list it from its published folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gradhomog import DataError, did_you_mean
from gradhomog_data.benchmarks import listing
from gradhomog_data.benchmarks.catalogue import Published
from gradhomog_data.benchmarks.listing import Listing
from gradhomog_data.domains import _formats

_LISTS: dict[str, Callable[[Published, Path], Listing]] = {
    "miniimagenet": listing.list_split_folders,
    "places": listing.list_places,
    "plantae": listing.list_plantae,
    "cars": listing.list_cars,
    "isic": listing.list_isic,
    "chestx": listing.list_chestx,
}
"""Readers of published folders; the others have one folder per class."""


def find(root: Path, benchmark: Published, size: int) -> Path | None:
    """Return the path of a benchmark that the domain `images` can read at this size; None if it is not below `root`.

    The first of these exists:

    1. `<name>-<size>.npz`, `<name>.npz`;
    2. `filelists/<name>/` with base.json, val.json or novel.json;
    3. `<name>/` with such lists, with train.csv, val.csv or test.csv, or with miniImageNet's pickles;
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


def find_forms(root: Path, benchmark: Published, size: int | None) -> Iterator[tuple[str, Path]]:
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
    form = kind and kind.name
    if own is not None and form is not None and form != "class folders":
        yield form, own
    # Before class folders: `cub/CUB_200_2011/images` would otherwise be a class `CUB_200_2011` without pictures.
    if (published := find_published(root, benchmark)) is not None:
        yield "published folders", published
    elif own is not None and form == "class folders" and any(path.is_dir() for path in own.iterdir()):
        yield "class folders", own
    if size is not None:
        yield from (("arrays", path) for path in sorted(sizes, key=lambda path: -sizes[path]))


def find_similar(root: Path, benchmark: Published, known: Iterable[Published]) -> list[Path]:
    """Return `.npz` files and folders below `root` whose names resemble this benchmark, but are not recognized."""
    words: dict[str, str] = {}
    recognized = set()
    for each in known:
        words |= dict.fromkeys((each.name, *re.findall(r"[\w-]{5,}", each.title)), each.name)
        recognized |= {path.relative_to(root).parts[0] for _, path in find_forms(root, each, 0)}
    found = []
    for path in sorted(root.iterdir()):
        if (path.suffix == ".npz" or path.is_dir()) and path.name not in recognized:
            hint = did_you_mean(re.sub(r"[-_ ]\d+$", "", path.stem), words, "{}")
            similar = hint.removeprefix(" Did you mean ").removesuffix("?")
            found += [path] if words.get(similar) == benchmark.name else []
    return found


def find_published(root: Path, benchmark: Published) -> Path | None:
    """Return the folder (for ChestX, the table) of a benchmark in its published layout.

    It is searched below `root`, `<name>/` and `filelists/<name>/source/`.
    """
    own = _child(root, benchmark.name)
    lists = _child(root / "filelists", benchmark.name)
    named = [folder for folder in (own, lists / "source" if lists is not None else None) if folder is not None]
    candidates = [base / folder for base in (root, *named) for folder in benchmark.folders]
    candidates += [base / folder for base in named for folder in benchmark.own_folders]
    return next((path for path in candidates if path.exists()), None)


def list_published(benchmark: Published, path: Path) -> Listing:
    """List a benchmark from its published folders, with its split rule.

    Raises:
        DataError: a folder or table is missing, damaged or incomplete; the message contains the path and the reason.
    """
    try:
        return _LISTS.get(benchmark.name, listing.list_class_folders)(benchmark, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error


def list_source(root: Path, benchmark: Published) -> Listing:
    """List a benchmark from its published folders below `root`, or from class folders in `<name>/`.

    Raises:
        DataError: neither exists, or they are damaged or incomplete.
    """
    if (path := find_published(root, benchmark)) is not None:
        return list_published(benchmark, path)
    for form, own in find_forms(root, benchmark, None):
        if form == "class folders":
            return list_published(benchmark, own)
    raise DataError(
        f"{root}: {benchmark.title} has no pictures here; expected {benchmark.layout}. It is obtained from "
        f"{benchmark.source}."
    )


def has_source(root: Path, benchmark: Published) -> bool:
    """Return whether `list_source` finds pictures of a benchmark."""
    forms = [form for form, _ in find_forms(root, benchmark, None)]
    return "published folders" in forms or "class folders" in forms


def _child(folder: Path, name: str) -> Path | None:
    """Return a folder by its name, or by its name with capitals."""
    if (folder / name).is_dir():
        return folder / name
    if not folder.is_dir():
        return None
    return next((path for path in sorted(folder.iterdir()) if path.name.lower() == name and path.is_dir()), None)
