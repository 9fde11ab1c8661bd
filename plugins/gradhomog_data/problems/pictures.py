"""Benchmarks on picture files, which are read in every step: attributes of faces (CelebA), objects (Office-Home)."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from gradhomog import DataError, ProblemRun, files
from gradhomog_data._seeding import generator
from gradhomog_data.domains._formats import read_folder
from gradhomog_data.domains._pictures import read_pictures, require_pillow
from gradhomog_data.networks import resnet18
from gradhomog_data.problems._benchmark import Batch, Benchmark, SharedNetwork, SplitName
from gradhomog_data.problems._scores import Collected, accuracy, f1

Pictures = Sequence[tuple[str, Any]]
"""The path of each picture in a folder, with `/`, and its label, or its labels."""

SPLITS = ("train", "validation", "test")
"""In the order of their numbers in list_eval_partition of CelebA."""


def read_batch(folder: Path, pictures: Pictures, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return pictures `[n, 3, size, size]` in [0, 1], resized without cropping, and their labels `[n, ...]`."""
    images = torch.from_numpy(read_pictures([folder / path for path, _ in pictures], size))
    # Contiguous: of channels_last, a strided 1 × 1 convolution of fewer than eight channels writes outside its memory
    # in PyTorch 2.13 (oneDNN 3.12), on processors that have AVX2 but not AVX-512.
    return images.to(device).contiguous().float() / 255, torch.tensor([label for _, label in pictures], device=device)


def fingerprint(pictures: Any) -> str:
    """Return a hash of paths, labels and splits."""
    return hashlib.sha256(repr(pictures).encode()).hexdigest()[:12]


# -- CelebA ----------------------------------------------------------------------------------------------------------

ATTRIBUTES = 40


def read_faces(data: str) -> tuple[Path, list[str], dict[str, Pictures]]:
    """Return the folder of the pictures, the names of the attributes, and the pictures of each split, labels 0 or 1.

    Raises:
        DataError: a list or the pictures are missing or damaged; Pillow is not installed.
    """
    root = Path(data).expanduser()
    require_pillow(root)
    folder = _find(root, "img_align_celeba/img_align_celeba", "Img/img_align_celeba", "img_align_celeba")
    lists = [_read_list(root, "Anno", "list_attr_celeba"), _read_list(root, "Eval", "list_eval_partition")]
    attributes, partition = ({row[0]: row[1:] for row in rows if row and ".jpg" in row[0]} for rows in lists)
    found = {(len(row), *sorted({*row} - {"1", "-1"})) for row in attributes.values()}
    names = next((row[-ATTRIBUTES:] for row in lists[0] if len({*row}) >= ATTRIBUTES), [])
    splits = {*map(tuple, partition.values())} == {("0",), ("1",), ("2",)}
    if attributes.keys() != partition.keys() or found != {(ATTRIBUTES,)} or not splits or not names:
        raise DataError(
            f"{root}: list_attr_celeba must have the names of {ATTRIBUTES} attributes, and 1 or -1 for each picture of "
            f"list_eval_partition, whose splits are 0, 1 and 2; found {len(attributes):,} and {len(partition):,} "
            "pictures. Download both again."
        )
    if missing := attributes.keys() - os.listdir(folder):
        raise DataError(
            f"{folder}: {len(missing):,} of {len(attributes):,} pictures are missing, such as {min(missing)}. Extract "
            "img_align_celeba.zip again."
        )
    labels = {name: tuple(float(value == "1") for value in row) for name, row in attributes.items()}
    parts: dict[str, list[tuple[str, Any]]] = {split: [] for split in SPLITS}
    for name, (number,) in partition.items():
        parts[SPLITS[int(number)]].append((name, labels[name]))
    return folder, names, {**parts}


def _find(root: Path, *places: str) -> Path:
    """Return the first file or folder of these that exists."""
    for place in places:
        if (root / place).exists():
            return root / place
    raise DataError(
        f"{root}: {places[-1]} is missing. Expected are img_align_celeba/*.jpg, list_attr_celeba and "
        "list_eval_partition, .txt or .csv, in this folder or in Img, Anno and Eval."
    )


def _read_list(root: Path, subfolder: str, name: str) -> list[list[str]]:
    """Return the words of each line."""
    text = files.read_text(_find(root, f"{subfolder}/{name}.txt", f"{name}.csv", f"{name}.txt"))
    return [line.replace(",", " ").split() for line in text.splitlines()]


def nine_layers(width: int) -> nn.Sequential:
    """Return the shared part of FAMO's network for CelebA: images `[n, 3, h, w]` to features `[n, 8 · width]`.

    Seven 3×3 convolutions with 1, 2, 2, 4, 4, 8 and 8 times `width` maps, with 2×2 max-pooling after the first, third
    and fifth and the mean over the map after the last, and two linear layers; each of the nine is followed by batch
    normalization and ReLU, and has no bias. Parameters with width 64: 5,176,640.

    Source: FAMO (Liu et al. 2023, arXiv:2306.03792), experiments/celeba/models.py; initialized as in PyTorch.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for factor, pools in ((1, 1), (2, 0), (2, 1), (4, 0), (4, 1), (8, 0), (8, 0)):
        outputs = factor * width
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] * pools
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for _ in range(2):
        layers += [nn.Linear(inputs, inputs, bias=False), nn.BatchNorm1d(inputs), nn.ReLU()]
    return nn.Sequential(*layers)


class CelebA(Benchmark):
    """40 binary attributes of 202,599 aligned faces, resized to 64 × 64 pixels, in [0, 1]; a linear head for each.

    The loss of an attribute is its cross-entropy. The score is its F1 score, the only one that the codes of FAMO and
    FairGrad record; their tables print Δm and mean rank. As in their code, pictures are resized without cropping, the
    official split is used, and the state with the best mean score on the validation images is tested.

    Source: Liu et al. 2015, "Deep Learning Face Attributes in the Wild", arXiv:1411.7766; protocol: FAMO (Liu et al.
    2023, arXiv:2306.03792), experiments/celeba: Adam with rate 3e-4, batches of 256, 15 epochs. It differs in the last
    batch of an epoch, which is omitted here if it is smaller.

    Args:
        data: the folder of CelebA.
        batch: images per step.
    """

    metric = "f1"

    def __init__(self, run: ProblemRun, *, data: str, batch: Annotated[int, Ge(2)] = 256) -> None:
        self.folder, names, self.parts = read_faces(data)
        self.size, self.fingerprint = run.size, fingerprint(self.parts)
        counts = [len(part) for part in self.parts.values()]
        super().__init__(
            run, names,
            lambda: SharedNetwork(nine_layers(run.width), {name: nn.Linear(8 * run.width, 1) for name in names}),
            counts[0], batch, f"Images of {', '.join(SPLITS)}: {counts}. Scores: F1 of each attribute.",
        )  # fmt: skip

    def batch(self, index: int) -> Batch:
        train = self.parts["train"]
        return self._read([train[number] for number in self.indices(index, len(train))])

    def chunks(self, split: SplitName) -> Iterator[Batch]:
        for start in range(0, len(self.parts[split]), self.batch_size):
            yield self._read(self.parts[split][start : start + self.batch_size])

    def _read(self, pictures: Pictures) -> Batch:
        images, labels = read_batch(self.folder, pictures, self.size, self.device)
        return {task: (images, target) for task, target in zip(self.tasks, labels.unbind(1), strict=True)}

    def loss(self, task: str, outputs: Any, targets: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs[:, 0], targets)

    def meters(self) -> dict[str, Collected]:
        return {task: Collected(task, f1) for task in self.tasks}


# -- Office-Home -----------------------------------------------------------------------------------------------------

DOMAINS = ("Art", "Clipart", "Product", "Real World")

CLASSES = 65

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the channels of ImageNet, with which the published weights of ResNet were trained."""


def read_domains(root: Path, seed: int) -> dict[str, dict[str, Pictures]]:
    """Return the pictures of each task by split: 60 and 20 % of each class, rounded down, and the others for test.

    Raises:
        DataError: a domain or class is missing; Pillow is not installed.
    """
    require_pillow(root)
    tasks: dict[str, dict[str, Pictures]] = {}
    for number, task in enumerate(DOMAINS):
        folder = root / task if (root / task).is_dir() else root / task.replace(" ", "_")
        classes = read_folder(folder, None, 0) if folder.is_dir() else {}
        fewest = min(map(len, classes.values()), default=0)
        if len(classes) != CLASSES or fewest < 5:
            raise DataError(
                f"{root}: Office-Home has the folders {', '.join(DOMAINS)}, each with {CLASSES} folders of at least 5 "
                f"pictures; found {len(classes)} in {task}, the smallest with {fewest}. Extract the archive again."
            )
        random = generator(seed, number, 1)  # 1: trailing zeros do not change a seed
        parts: dict[str, list[tuple[str, int]]] = {split: [] for split in SPLITS}
        for label, paths in enumerate(classes.values()):
            train, validation = int(0.6 * len(paths)), int(0.2 * len(paths))
            found = np.split(random.permutation(paths), [train, train + validation])
            for split, part in zip(SPLITS, found, strict=True):
                parts[split] += [(Path(path).relative_to(root).as_posix(), label) for path in part]
        tasks[task] = {**parts}
    return tasks


class Encoder(nn.Sequential):
    """ResNet-18, the mean over its last map, and a hidden layer with batch normalization, ReLU and dropout 0.5.

    As in LibMTL, examples/office/main.py: the weights of the hidden layer are from N(0, 0.005²), its biases 0.1.
    Images `[n, 3, size, size]`, features `[n, 8 · width]`.

    Args:
        weights: a file of torchvision's ResNet-18, whose last layer is ignored.

    Raises:
        DataError: the file is missing, or is not that of this network.
    """

    def __init__(self, size: int, width: int, weights: str | None = None) -> None:
        resnet, _ = resnet18((3, size, size), CLASSES, width)
        hidden = nn.Linear(8 * width, 8 * width)
        nn.init.normal_(hidden.weight, std=0.005)
        nn.init.constant_(hidden.bias, 0.1)
        super().__init__(resnet, hidden, nn.BatchNorm1d(8 * width), nn.ReLU(), nn.Dropout(0.5))
        try:
            state = {} if weights is None else torch.load(weights, map_location="cpu", weights_only=True)
            resnet.load_state_dict({k: v for k, v in state.items() if k[:3] != "fc."}, strict=weights is not None)
        except Exception as cause:  # OSError, RuntimeError, UnpicklingError, AttributeError, ...
            raise DataError(
                f"`problem.weights` {weights}: must be the state_dict of torchvision's resnet18, such as "
                f"resnet18-f37072fd.pth, with `network.width` 64 ({type(cause).__name__})."
            ) from cause


class OfficeHome(Benchmark):
    """The class of an object among 65, in 15,588 pictures of four domains, resized without cropping to 224 × 224.

    Each step has a batch of each domain. An epoch of a domain is a permutation of its pictures; the epochs of small
    domains end earlier. A head is linear; its loss is the cross-entropy, its score the accuracy. The state with the
    best mean accuracy on the validation pictures is tested.

    Source: Venkateswara et al. 2017, arXiv:1706.07522; protocol: LibMTL, examples/office: Adam with rate 1e-4, batches
    of 64, 100 epochs of the largest domain. It differs from LibMTL: 1. no weight decay, there 1e-5; 2. the split of
    each class is drawn with `seed`, with the sizes of LibMTL's lists; 3. without `weights`, the network is trained from
    its initialization. LibMTL starts from the weights of ImageNet, and accuracies without them are not comparable.

    Args:
        data: the folder of Office-Home.
        batch: pictures of each domain per step.
        weights: a file of torchvision's ResNet-18.
        seed: of the split: 60 % of each class for training and 20 % for validation, rounded down.
    """

    metric = "accuracy"

    def __init__(
        self, run: ProblemRun, *, data: str, batch: Annotated[int, Ge(2)] = 64, weights: str | None = None,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:  # fmt: skip
        self.folder, self.size = Path(data).expanduser(), run.size
        self.parts = read_domains(self.folder, seed)
        counts = [len(parts["train"]) for parts in self.parts.values()]

        def network() -> SharedNetwork:
            encoder = Encoder(run.size, run.width, weights)
            return SharedNetwork(encoder, {task: nn.Linear(8 * run.width, CLASSES) for task in DOMAINS})

        super().__init__(run, DOMAINS, network, max(counts), batch, f"Pictures for training: {counts}.")
        # Other initial weights under the same name are other data: a comparison must not continue their results.
        self.fingerprint = fingerprint((self.parts, weights and hashlib.sha256(Path(weights).read_bytes()).digest()))

    def batch(self, index: int) -> Batch:
        chosen = {}
        for number, (task, parts) in enumerate(self.parts.items()):
            train = parts["train"]
            chosen[task] = self._read([train[place] for place in self.indices(index, len(train), number)])
        return chosen

    def chunks(self, split: SplitName) -> Iterator[Batch]:
        for task, parts in self.parts.items():
            for start in range(0, len(parts[split]), self.batch_size):
                yield {task: self._read(parts[split][start : start + self.batch_size])}

    def _read(self, pictures: Pictures) -> tuple[Tensor, Tensor]:
        images, labels = read_batch(self.folder, pictures, self.size, self.device)
        mean, deviation = (images.new_tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
        return (images - mean) / deviation, labels

    def loss(self, task: str, outputs: Any, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    def meters(self) -> dict[str, Collected]:
        return {task: Collected(task, accuracy) for task in self.tasks}
