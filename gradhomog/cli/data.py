"""`gradhomog data`: find, check and list benchmarks on your disk. Nothing is downloaded.

Few-shot benchmarks lie below one data root; each multi-task benchmark has its own folder, and is listed only.
"""

import argparse
import dataclasses
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradhomog.cli._output import add_json, print_result
from gradhomog.table import aligned

NAMES = (
    "Recognized below ROOT: NAME-SIZE.npz, NAME.npz, filelists/NAME, NAME, and the folders of `gradhomog data list`. "
    "Pass --domain NAME=PATH to `gradhomog reproduce` for a file or folder of another name."
)


SUMMARY = "list benchmarks, and find and check the few-shot ones on disk"


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")

    listing = actions.add_parser(
        "list", help="list the benchmarks: source, terms, folders, counts",
        description="List the benchmarks: where they are obtained, terms of use, and the folders below the data root.",
    )  # fmt: skip
    add_json(listing)

    check = actions.add_parser(
        "check", help="check the files of benchmarks",
        description="Check the files of benchmarks: form, numbers of classes and images against the published ones, "
        "splits, headers of all images, digests of file lists.",
        epilog=f"{NAMES} Exit codes: 0 all are complete; 1 a benchmark is damaged, incomplete or other data, or one "
        "that was named is missing; 2 invalid input.",
    )  # fmt: skip
    _add_root(check)
    check.add_argument("--full", action="store_true", help="decode every image completely (takes minutes)")
    add_json(check)

    lists = actions.add_parser(
        "lists", help="write file lists with the published splits",
        description="Write base.json, val.json and novel.json with the published split rules, and a manifest, from the "
        "published folders of benchmarks. The files are the same on every machine.",
        epilog="Exit codes: 0 success; 1 a benchmark is damaged or missing; 2 invalid input.",
    )  # fmt: skip
    _add_root(lists)
    lists.add_argument("--out", type=Path, metavar="DIR", help="folder of the lists (default: ROOT/filelists)")
    add_json(lists)


def run(args: argparse.Namespace) -> int:
    return {"list": _list, "check": _check, "lists": _write_lists}[args.action](args)


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, metavar="ROOT", help="data root: the folder that contains the benchmarks")
    names = parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks (default: all)")
    names.completer = lambda **_: _content(":BENCHMARKS")  # type: ignore[attr-defined]  # called by argcomplete


def _content(name: str) -> Any:
    """Return an object of the package of the benchmarks, which only these commands need."""
    return pkgutil.resolve_name(f"gradhomog_data.benchmarks{name}")


def _find(names: Iterable[str]) -> list[Any]:
    return [*map(_content(":find_benchmark"), dict.fromkeys(names))]


def _list(args: argparse.Namespace) -> int:
    data, lines = list[dict[str, Any]](), list[str]()
    for benchmark in _content(":BENCHMARKS").values():
        data.append({**dataclasses.asdict(benchmark), "rule": benchmark.split_rule, "splits": benchmark.splits})
        images = "" if benchmark.images is None else f", {benchmark.images:,} images"
        lines.append(f"{benchmark.name}: {benchmark.title}, {benchmark.classes} classes{images}")
        rows = {
            "source": benchmark.source,
            "terms": benchmark.terms,
            "files": benchmark.layout,
            "split": f"{benchmark.split_rule}: " + ", ".join(f"{n} {split}" for split, n in benchmark.splits.items()),
            "order": benchmark.order,
        }
        lines += aligned([(f"  {key}", value) for key, value in rows.items()])
    for name, facts in _content(":MULTI_TASK").items():
        data.append({"name": name, **facts})
        rows = {"source": facts["source"], "terms": facts["terms"], "files": facts["layout"]}
        lines.append(f"{name}: {facts['title']}, {facts['contents']}")
        lines += aligned([*((f"  {key}", value) for key, value in rows.items()),
                          ("  use", f"gradhomog reproduce {name} --data DIR, the folder of these files")])  # fmt: skip
    print_result(args, data, "\n".join(lines))
    return 0


def _check(args: argparse.Namespace) -> int:
    chosen = _find(args.names or _content(":BENCHMARKS"))
    _require_root(args.root)
    check = _content(".files_check:check")
    results = [check(args.root, each, full=args.full) for each in chosen]
    header = ("BENCHMARK", "STATUS", "FORM", "CLASSES", "IMAGES", "SHA-256")
    lines = list(aligned([header, *map(_check_row, results)]))
    for result in results:
        texts = (*result.problems, "; ".join(result.differences), result.advice)
        lines += [f"{result.benchmark}: {text}" for text in texts if text]
    lines += [NAMES] * any(result.status == "missing" for result in results)
    print_result(args, [dataclasses.asdict(result) for result in results], "\n".join(lines))
    good = {"complete"} if args.names else {"complete", "missing"}
    return 0 if all(result.status in good for result in results) else 1


def _check_row(result: Any) -> tuple[str, ...]:
    """The row of a `BenchmarkCheck` in the printed table, which compares its counts with the published ones."""
    classes = f"{result.classes} of {result.published_classes}" if result.classes else ""
    images = f"{result.images:,}" if result.images else ""
    if images and result.published_images is not None:
        images += f" of {result.published_images:,}"
    return result.benchmark, result.status, result.form or "", classes, images, result.sha256[:16]


def _write_lists(args: argparse.Namespace) -> int:
    from gradhomog.errors import DataError
    from gradhomog.experiments.results.atomic_files import write_bytes

    folders, named = _content(".folders"), _find(args.names)
    _require_root(args.root)
    chosen = named or [each for each in _content(":BENCHMARKS").values() if folders.find_source(args.root, each)]
    if not chosen:
        raise DataError(
            f"{args.root}: contains none of the benchmarks in their published folders. "
            "`gradhomog data list` prints the expected folders."
        )
    out = args.out or args.root / "filelists"
    manifests, errors = [], []
    for each in chosen:
        print(f"listing {each.name} …", file=sys.stderr)
        folder = out / each.name
        try:
            manifest, contents = folders.list_files(each, folders.list_source(args.root, each), folder)
        except DataError as error:
            errors.append(str(error))
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            if content is None:
                (folder / name).unlink(missing_ok=True)  # of an earlier call with another rule
            else:
                write_bytes(folder / name, content)
        manifests.append({**manifest, "folder": str(folder)})
    rows = [("BENCHMARK", "BASE", "VAL", "NOVEL", "IMAGES", "FOLDER")]
    for item in manifests:
        classes = [str(item["splits"][split]["classes"]) for split in ("base", "val", "novel")]
        rows.append((item["benchmark"], *classes, f"{item['images']:,}", item["folder"]))
    if args.json or manifests:
        print_result(args, manifests, "\n".join(aligned(rows)))
    for message in errors:
        print(f"gradhomog: {message}", file=sys.stderr)
    return 1 if errors else 0


def _require_root(root: Path) -> None:
    from gradhomog.errors import DataError

    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder; ROOT is the folder that contains the benchmarks.")
