"""Write the file lists of a benchmark: base.json, val.json, novel.json, and a manifest."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from gradhomog.experiments.data.benchmarks.catalogue import RULES, Benchmark
from gradhomog.experiments.data.benchmarks.class_folders import SEED
from gradhomog.experiments.data.benchmarks.listing import SPLITS, Listing
from gradhomog.experiments.results.atomic_files import write_bytes

MANIFEST = "manifest.json"
"""File beside the lists, with the split rule, the counts and the SHA-256 of each list."""


def write_lists(benchmark: Benchmark, listing: Listing, folder: Path) -> dict[str, Any]:
    """Write one list per split that has classes, in the format of Chen et al. 2019, and return the manifest.

    The lists depend on the names of folders and files and on the place of the pictures relative to `folder`, not on
    the machine. Differences from the lists of published code: paths are relative to the list instead of absolute, and
    images are in the order of their names instead of a random order.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The real path: `..` in a path through a symbolic link starts at its target.
    prefix = Path(os.path.relpath(os.path.abspath(listing.folder), os.path.realpath(folder))).as_posix()
    names = list(listing.classes)
    digests = {}
    for split in SPLITS:
        images = [
            (f"{prefix}/{image}", label)
            for label, name in enumerate(names)
            if listing.splits[name] == split
            for image in listing.classes[name]
        ]
        path = folder / f"{split}.json"
        if not images:
            path.unlink(missing_ok=True)  # of an earlier call with another rule
            continue
        content = {
            "label_names": names,
            "image_names": [image for image, _ in images],
            "image_labels": [label for _, label in images],
        }
        text = (json.dumps(content) + "\n").encode()
        write_bytes(path, text)
        digests[path.name] = hashlib.sha256(text).hexdigest()
    counts = listing.counts()
    manifest = {
        "benchmark": benchmark.name,
        "rule": RULES[benchmark.rule],
        "order": benchmark.order,
        "seed": SEED if benchmark.name == "plantae" else None,
        "classes": len(names),
        "images": sum(count["images"] for count in counts.values()),
        "splits": counts,
        "sha256": digests,
    }
    write_bytes(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    return manifest
