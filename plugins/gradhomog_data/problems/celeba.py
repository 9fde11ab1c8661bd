"""The benchmark CelebA: 40 binary attributes of faces, predicted by the nine-layer network of FAMO's experiment."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from gradhomog import DataError, ProblemRun, files
from gradhomog_data.domains._pictures import read_pictures, require_pillow
from gradhomog_data.problems._benchmark import Batch, Benchmark, SharedNetwork, SplitName

ATTRIBUTES = 40

LAYOUT = (
    "Expected are img_align_celeba/*.jpg, list_attr_celeba and list_eval_partition (.txt or .csv), as torchvision, "
    "Kaggle, or the folders Img, Anno and Eval of the authors have them."
)

SPLITS = ("train", "validation", "test")
"""The splits in the order of their numbers in list_eval_partition."""

MAX_TEXT = 2**27
"""Limit on a list in bytes; list_attr_celeba.txt has 27 million."""


class Faces:
    """The lists of CelebA, and pictures that are read when they are needed.

    Attributes:
        attributes: names of the attributes.
        parts: the paths of the pictures and their labels `[n, attributes]`, 0 or 1, of each split.
        fingerprint: a hash of the names, labels and splits.

    Raises:
        DataError: the folder does not have the layout, a list is damaged, or pictures are missing.
    """

    def __init__(self, data: str) -> None:
        folder = Path(data)
        require_pillow(folder)
        pictures = _find(folder, "img_align_celeba", ("img_align_celeba/img_align_celeba", "Img/img_align_celeba"))
        attributes = _read_list(_find_list(folder, "list_attr_celeba", "Anno"))
        partition = _read_list(_find_list(folder, "list_eval_partition", "Eval"))
        if len(attributes[0]) == 1:  # the number of pictures, in the text file
            del attributes[0]
        if partition[0][0] == "image_id":  # the header of the CSV file
            del partition[0]
        header, *rows = attributes or [[]]
        names = [row[0] for row in rows]
        if names != [row[0] for row in partition] or {len(row) for row in rows} != {ATTRIBUTES + 1}:
            raise DataError(
                f"{folder}: list_attr_celeba must have {ATTRIBUTES} attributes of each picture of list_eval_partition, "
                f"in the same order; found {len(rows)} rows for {len(partition)} pictures. Download both again."
            )
        values, splits = np.array([row[1:] for row in rows]), np.array([row[-1] for row in partition])
        if not np.isin(values, ("1", "-1")).all() or set(splits.tolist()) != {"0", "1", "2"}:
            raise DataError(
                f"{folder}: attributes must be 1 or -1, and the numbers in list_eval_partition 0, 1 and 2, each of "
                "some pictures. Download both lists again."
            )
        if missing := set(names).difference(os.listdir(pictures)):
            raise DataError(
                f"{pictures}: {len(missing):,} of {len(names):,} pictures are missing, such as {min(missing)}. Extract "
                "img_align_celeba.zip again."
            )
        self.attributes, paths, labels = (
            header[-ATTRIBUTES:],
            np.array([str(pictures / name) for name in names]),
            values == "1",
        )
        rows_of = {split: splits == str(number) for number, split in enumerate(SPLITS)}
        self.parts = {split: (paths[rows], torch.from_numpy(labels[rows]).float()) for split, rows in rows_of.items()}
        content = repr((header, names, splits.tolist())).encode() + labels.tobytes()
        self.fingerprint = hashlib.sha256(content).hexdigest()[:12]


def _find(folder: Path, name: str, places: tuple[str, ...]) -> Path:
    """Return the path of a file or folder of CelebA, the first of `places` that exists, or directly in the folder."""
    for place in (*places, name):
        if (path := folder / place).exists():
            return path
    raise DataError(f"{folder}: {name} is missing. {LAYOUT}")


def _find_list(folder: Path, name: str, subfolder: str) -> Path:
    return _find(folder, f"{name}.txt", (f"{subfolder}/{name}.txt", f"{name}.csv"))


def _read_list(path: Path) -> list[list[str]]:
    """Return the words of each line of a text or CSV file that is not empty."""
    rows = [line.replace(",", " ").split() for line in files.read_text(path, MAX_TEXT).splitlines() if line.strip()]
    if not rows:
        raise DataError(f"{path}: is empty. Download it again.")
    return rows


def nine_layers(width: int) -> nn.Sequential:
    """Return the shared part of FAMO's network for CelebA: images `[n, 3, h, w]` to features `[n, 8 · width]`.

    Seven 3×3 convolutions with 1, 2, 2, 4, 4, 8 and 8 times `width` maps, with 2×2 max-pooling after the first, third
    and fifth and the mean over the map after the last, and two linear layers; each of the nine is followed by batch
    normalization and ReLU, and has no bias. Parameters with width 64: 5,176,640.

    Source: FAMO (Liu et al. 2023, arXiv:2306.03792), experiments/celeba/models.py; initialized as in PyTorch.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for factor, pools in ((1, True), (2, False), (2, True), (4, False), (4, True), (8, False), (8, False)):
        layers += [
            nn.Conv2d(inputs, factor * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(factor * width),
            nn.ReLU(),
        ]
        layers += [nn.MaxPool2d(2)] * pools
        inputs = factor * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for _ in range(2):
        layers += [nn.Linear(inputs, inputs, bias=False), nn.BatchNorm1d(inputs), nn.ReLU()]
    return nn.Sequential(*layers)


class F1:
    """The F1 score 2 TP / (2 TP + FP + FN) of a binary task; 0 without a positive example or prediction."""

    def __init__(self, task: str) -> None:
        self.task, self.true, self.predicted, self.positive = task, 0.0, 0.0, 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        predicted = (outputs[:, 0] > 0).to(targets.dtype)
        self.true += float((predicted * targets).sum())
        self.predicted += float(predicted.sum())
        self.positive += float(targets.sum())

    def scores(self) -> Mapping[str, float]:
        total = self.predicted + self.positive
        return {self.task: 2 * self.true / total if total else 0.0}


class CelebA(Benchmark):
    """40 binary attributes of 202,599 aligned faces, resized to 64 × 64 pixels, in [0, 1]; a linear head for each.

    The loss of an attribute is its cross-entropy. The score is its F1 score, of which the tables of FAMO and FairGrad
    compute Δm and mean rank; they print neither accuracy nor the single scores. As in their code, pictures are
    resized without cropping, the official split is used, and the state with the best mean score on the validation
    images is tested. Each of the 40 networks of "single-task" is trained at the same time.

    Source: Liu et al. 2015, "Deep Learning Face Attributes in the Wild", arXiv:1411.7766; protocol: FAMO (Liu et al.
    2023, arXiv:2306.03792), experiments/celeba: Adam with rate 3e-4, batches of 256, 15 epochs. It differs in the last
    batch of an epoch, which is omitted here if it is smaller.

    Args:
        data: the folder of CelebA.
        batch: images per step.
    """

    metric = "f1"

    def __init__(self, run: ProblemRun, *, data: str, batch: Annotated[int, Ge(2)] = 256) -> None:
        faces = Faces(data)
        self.parts, self.size, self.fingerprint = faces.parts, run.size, faces.fingerprint

        def network() -> SharedNetwork:
            return SharedNetwork(
                nine_layers(run.width), {name: nn.Linear(8 * run.width, 1) for name in faces.attributes}
            )  # fmt: skip

        counts = ", ".join(f"{len(paths):,} for {split}" for split, (paths, _) in self.parts.items())
        super().__init__(
            run,
            faces.attributes,
            network,
            len(self.parts["train"][0]),
            batch,
            f"Images: {counts}. Scores: F1 of each attribute.",
        )

    def batch(self, index: int) -> Batch:
        return self._read("train", self.indices(index, len(self.parts["train"][0])))

    def chunks(self, split: SplitName) -> Iterator[Batch]:
        for chosen in np.array_split(np.arange(count := len(self.parts[split][0])), -(-count // self.batch_size)):
            yield self._read(split, chosen)

    def _read(self, split: str, chosen: NDArray[np.int64]) -> Batch:
        paths, labels = self.parts[split]
        images = torch.from_numpy(read_pictures(paths[chosen].tolist(), self.size)).to(self.device).float() / 255
        columns = labels[chosen].to(self.device).unbind(1)
        return {task: (images, target) for task, target in zip(self.tasks, columns, strict=True)}

    def loss(self, task: str, outputs: Any, targets: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs[:, 0], targets)

    def meters(self) -> Mapping[str, F1]:
        return {task: F1(task) for task in self.tasks}
