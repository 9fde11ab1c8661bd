"""Tiny copies of CelebA, Office-Home and QM9 in their true layouts."""

import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image

ATTRIBUTES = [f"Attribute_{number}" for number in range(40)]

SPLITS = [0] * 12 + [1] * 6 + [2] * 7
"""The split of each picture of CelebA."""


def write_picture(path: Path, random, height=11, width=9):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path, quality=95)


def celeba(folder: Path, kaggle=False, subfolders=False):
    """CelebA with the text files of the authors, in their folders or in one, or with the CSV files of Kaggle.

    Returns:
        The labels `[pictures, 40]`, 1 or -1.
    """
    random = np.random.default_rng(0)
    names = [f"{number:06d}.jpg" for number in range(1, len(SPLITS) + 1)]
    labels = random.choice([-1, 1], (len(names), 40))
    places = ("Img", "Anno", "Eval") if subfolders else ("img_align_celeba" if kaggle else ".", ".", ".")
    for name in names:
        write_picture(folder / places[0] / "img_align_celeba" / name, random)
    lists = [folder / places[1] / "list_attr_celeba.txt", folder / places[2] / "list_eval_partition.txt"]
    for path in lists:
        path.parent.mkdir(exist_ok=True)
    if kaggle:
        heads = ["image_id", *ATTRIBUTES], ["image_id", "partition"]
        rows = [[name, *row] for name, row in zip(names, labels, strict=True)], [*zip(names, SPLITS, strict=True)]
        for path, head, content in zip(lists, heads, rows, strict=True):
            with path.with_suffix(".csv").open("w", newline="") as file:
                csv.writer(file).writerows([head, *content])
    else:
        values = ["  ".join(f"{value:2d}" for value in row) for row in labels]
        lines = [f"{name} {row}" for name, row in zip(names, values, strict=True)]
        lists[0].write_text("\n".join([str(len(names)), " ".join(ATTRIBUTES) + " ", *lines, ""]))
        lists[1].write_text("".join(f"{name} {split}\n" for name, split in zip(names, SPLITS, strict=True)))
    return labels


CLASSES = [f"Class{number:02d}" for number in range(65)]


def office_home(folder: Path, domains=("Art", "Clipart", "Product", "Real World")):
    """Office-Home with five pictures of each class, in Clipart six."""
    random = np.random.default_rng(0)
    for domain in domains:
        for name in CLASSES:
            for number in range(6 if domain == "Clipart" else 5):
                write_picture(folder / domain / name / f"{number:05d}.jpg", random)


def qm9(folder: Path, count=20):
    """QM9 as PyTorch Geometric stores it: chains of atoms with random positions and properties.

    Returns:
        The molecules.
    """
    from torch_geometric.data import Data, InMemoryDataset

    random = torch.Generator().manual_seed(0)
    molecules = []
    for number in range(count):
        atoms = 2 + number % 4
        start = torch.arange(atoms - 1)
        edges = torch.cat([torch.stack([start, start + 1]), torch.stack([start + 1, start])], 1)
        kinds = torch.randint(4, (edges.shape[1],), generator=random)
        molecules.append(
            Data(
                x=torch.randn(atoms, 11, generator=random), edge_index=edges, edge_attr=torch.eye(4)[kinds],
                pos=torch.randn(atoms, 3, generator=random), y=torch.randn(1, 19, generator=random) * 3 + 5,
                z=torch.ones(atoms, dtype=torch.long), name=f"gdb_{number}", idx=number,
            )
        )  # fmt: skip
    (folder / "processed").mkdir(parents=True)
    InMemoryDataset.save(molecules, str(folder / "processed" / "data_v3.pt"))
    return molecules
