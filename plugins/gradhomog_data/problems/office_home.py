"""The benchmark Office-Home: objects of 65 classes in four domains, each a task with its own pictures."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradhomog import DataError, ProblemRun
from gradhomog_data._seeding import generator
from gradhomog_data.domains._formats import read_folder
from gradhomog_data.domains._pictures import read_pictures, require_pillow
from gradhomog_data.networks import resnet18
from gradhomog_data.problems._benchmark import Batch, Benchmark, SharedNetwork, SplitName

DOMAINS = {
    "Art": ("Art",),
    "Clipart": ("Clipart",),
    "Product": ("Product",),
    "Real World": ("Real World", "Real_World", "RealWorld"),
}
"""The tasks, and the names of their folders in the copies that circulate."""

CLASSES = 65

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the channels of ImageNet, with which the published weights of ResNet were trained."""

SHARES = {"train": 0.6, "validation": 0.2}
"""Shares of the pictures of each class, rounded down, as in the lists of LibMTL; the others are for test."""

Pictures = Mapping[str, tuple[NDArray[np.str_], NDArray[np.int64]]]
"""The paths and classes of the pictures of each split."""


def read_domains(data: str, seed: int) -> tuple[dict[str, Pictures], str]:
    """Return the pictures of each task, and a hash of their paths in the folder and splits.

    Raises:
        DataError: a domain or class is missing.
    """
    root = Path(data)
    require_pillow(root)
    tasks: dict[str, Pictures] = {}
    digest = hashlib.sha256()
    for number, (task, names) in enumerate(DOMAINS.items()):
        folder = next((root / name for name in names if (root / name).is_dir()), None)
        classes = {} if folder is None else read_folder(folder, None, 0)
        if len(classes) != CLASSES:
            raise DataError(
                f"{root}: Office-Home has the folders {', '.join(DOMAINS)}, each with {CLASSES} folders of pictures; "
                f"found {len(classes)} in {task if folder is None else folder.name}. Extract the archive again."
            )
        random = generator(seed, number, 1)
        parts: dict[str, list[tuple[str, int]]] = {"train": [], "validation": [], "test": []}
        for label, paths in enumerate(classes.values()):
            shuffled = [(paths[place], label) for place in random.permutation(len(paths))]
            for split, share in SHARES.items():
                count = int(share * len(paths))
                parts[split] += shuffled[:count]
                del shuffled[:count]
            parts["test"] += shuffled
        if empty := [split for split, part in parts.items() if not part]:
            raise DataError(f"{folder}: too few pictures for the split {empty[0]}. Extract the archive again.")
        digest.update(repr({split: [Path(p).parts[-2:] for p, _ in part] for split, part in parts.items()}).encode())
        tasks[task] = {
            split: (np.array([path for path, _ in part]), np.array([label for _, label in part]))
            for split, part in parts.items()
        }
    return tasks, digest.hexdigest()[:12]


class Encoder(nn.Sequential):
    """ResNet-18, the mean over its last map, and a hidden layer with batch normalization, ReLU and dropout 0.5.

    As in LibMTL, examples/office/main.py: the weights of the hidden layer are from N(0, 0.005²), its biases 0.1.
    Images `[n, 3, size, size]`, features `[n, 8 · width]`.
    """

    def __init__(self, size: int, width: int) -> None:
        resnet, _ = resnet18((3, size, size), CLASSES, width)
        features = 8 * width
        hidden = nn.Linear(features, features)
        nn.init.normal_(hidden.weight, std=0.005)
        nn.init.constant_(hidden.bias, 0.1)
        super().__init__(resnet, hidden, nn.BatchNorm1d(features), nn.ReLU(), nn.Dropout(0.5))


def load_weights(encoder: nn.Module, path: str) -> None:
    """Load a file of torchvision's ResNet-18, without its last layer.

    Raises:
        DataError: the file is missing, is no file of weights, or is of another network.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        encoder.load_state_dict({name: value for name, value in state.items() if not name.startswith("fc.")})
    except Exception as cause:  # OSError, RuntimeError, UnpicklingError, ...
        reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise DataError(
            f"`problem.weights` {path}: must be the state_dict of torchvision's resnet18, such as "
            f"resnet18-f37072fd.pth, with `network.width` 64 ({reason})."
        ) from cause


class Accuracy:
    """The share of examples that are classified correctly."""

    def __init__(self, task: str) -> None:
        self.task, self.correct, self.count = task, 0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.correct += int((outputs.argmax(1) == targets).sum())
        self.count += len(targets)

    def scores(self) -> Mapping[str, float]:
        return {self.task: self.correct / self.count}


class OfficeHome(Benchmark):
    """The class of an object among 65, in 15,588 pictures of four domains, resized without cropping to 224 × 224.

    Each step has a batch of each domain. An epoch of a domain is a permutation of its pictures; the epochs of small
    domains end earlier. A head is linear; its loss is the cross-entropy, its score the accuracy. The state with the
    best mean accuracy on the validation pictures is tested.

    Source: Venkateswara et al. 2017, arXiv:1706.07522; protocol: LibMTL, examples/office: Adam with rate 1e-4, batches
    of 64, 100 epochs of the largest domain. It differs from LibMTL: 1. no weight decay, there 1e-5; 2. the split of
    each class is drawn with `seed`, with the sizes of LibMTL's lists; 3. without `weights`, the network is trained from
    its initialization. LibMTL starts from the weights of ImageNet, and no accuracy is comparable with its results
    without them.

    Args:
        data: the folder of Office-Home.
        batch: pictures of each domain per step.
        weights: a file of torchvision's ResNet-18.
        seed: of the split: 60 % of each class for training and 20 % for validation, rounded down.
    """

    metric = "accuracy"

    def __init__(
        self,
        run: ProblemRun,
        *,
        data: str,
        batch: Annotated[int, Ge(2)] = 64,
        weights: str | None = None,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        self.parts, self.fingerprint = read_domains(data, seed)
        self.size = run.size

        def network() -> SharedNetwork:
            encoder = Encoder(run.size, run.width)
            if weights is not None:
                load_weights(encoder[0], weights)
            return SharedNetwork(encoder, {task: nn.Linear(8 * run.width, CLASSES) for task in DOMAINS})

        counts = [len(parts["train"][0]) for parts in self.parts.values()]
        super().__init__(
            run, tuple(DOMAINS), network, max(counts), batch, f"Pictures for training: {', '.join(map(str, counts))}."
        )

    def batch(self, index: int) -> Batch:
        return {
            task: self._read(task, "train", self.indices(index, len(parts["train"][0]), number))
            for number, (task, parts) in enumerate(self.parts.items())
        }

    def chunks(self, split: SplitName) -> Iterator[Batch]:
        for task, parts in self.parts.items():
            count = len(parts[split][0])
            for chosen in np.array_split(np.arange(count), -(-count // self.batch_size)):
                yield {task: self._read(task, split, chosen)}

    def _read(self, task: str, split: str, chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        paths, labels = self.parts[task][split]
        images = torch.from_numpy(read_pictures(paths[chosen].tolist(), self.size)).to(self.device).float() / 255
        mean, deviation = (images.new_tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
        return (images - mean) / deviation, torch.from_numpy(labels[chosen]).to(self.device)

    def loss(self, task: str, outputs: Any, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    def meters(self) -> Mapping[str, Accuracy]:
        return {task: Accuracy(task) for task in self.tasks}
