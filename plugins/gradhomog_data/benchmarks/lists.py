"""Write the file lists of a benchmark: base.json, val.json, novel.json, and a manifest."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from gradhomog_data.benchmarks.catalogue import Published
from gradhomog_data.benchmarks.class_folders import SEED
from gradhomog_data.benchmarks.listing import SPLITS, Listing

MANIFEST = "manifest.json"
"""File beside the lists, with the split rule, the counts and the SHA-256 of each list."""


def list_files(benchmark: Published, listing: Listing, folder: Path) -> tuple[dict[str, Any], dict[str, bytes | None]]:
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
