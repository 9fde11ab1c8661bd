"""NYUv2 and Cityscapes, the benchmarks of dense prediction, in the folders of MTAN's authors."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from gradhomog import ProblemRun
from gradhomog_data._seeding import generator
from gradhomog_data.problems import _dense_metrics as metrics
from gradhomog_data.problems._benchmark import SINGLE_TASK, Batch, Benchmark, Meter, SplitName
from gradhomog_data.problems._dense_images import DEPTH, IMAGE, NORMAL, SEGMENTATION, DenseImages, Maps, augment
from gradhomog_data.problems._segnet import dense_network


class DensePrediction(Benchmark):
    """Segmentation, depth and normals of images by one network; `network.width` is the number of its finest maps.

    Scores are the losses; additional scores are those of `_dense_metrics`. For the method "single-task", each task has
    a plain SegNet, as in the papers. The options are those of `NYUv2`.

    Attributes:
        folders: the folder of the images, and of each task; of several names, the first that exists.
        classes: number of classes.
        images: images in a batch in the papers. Batches of validation and test have it with any `batch`, because some
            metrics depend on it.

    Raises:
        DataError: the data cannot be used.
    """

    folders: ClassVar[Mapping[str, Sequence[str]]]
    classes: ClassVar[int]
    images: ClassVar[int]

    def __init__(
        self,
        run: ProblemRun,
        *,
        data: str,
        batch: Annotated[int, Ge(1)] | None = None,
        architecture: Literal["mtan", "segnet"] = "mtan",
        augmentation: bool = True,
        validation: Annotated[float, Ge(0), Le(0.5)] = 0.0,
        averaged_epochs: Annotated[int, Ge(1)] = 10,
    ) -> None:
        root = Path(data).expanduser()
        self.train, self.val = (DenseImages(root / name, self.folders, self.classes) for name in ("train", "val"))
        self.training = self.train.count - math.ceil(validation * self.train.count)
        self.augmentation = augmentation
        self.fingerprint = f"{self.train.fingerprint}-{self.val.fingerprint}"
        tasks = [kind for kind in self.folders if kind != IMAGE]
        outputs = {task: {SEGMENTATION: self.classes, DEPTH: 1, NORMAL: 3}[task] for task in tasks}
        place = "training images" if validation else f"test images, and scores are means of the last {averaged_epochs}"
        chosen = "segnet" if run.homogenizers == SINGLE_TASK else architecture
        super().__init__(
            run, tasks, lambda: dense_network(chosen, run.width, outputs), self.training, batch or self.images,
            f"Images: {self.training} for training, {self.val.count} for test. Validation is on {place}.",
            validates_on="validation" if validation else "test", averaged_epochs=averaged_epochs,
        )  # fmt: skip
        self.named_metrics = {name: metric for task in tasks for name, metric in metrics.METRICS[task].items()}

    def batch(self, index: int) -> Batch:
        images = [self.train.read(int(number), self.device) for number in self.indices(index, self.training)]
        if self.augmentation:
            random = generator(self.seed, index, 2)  # 1 is that of the order
            images = [augment(maps, random) for maps in images]
        return self._stacked(images)

    def chunks(self, split: SplitName) -> Iterator[Batch]:
        files, first = (self.train, self.training) if split == "validation" else (self.val, 0)
        for start in range(first, files.count, self.images):
            numbers = range(start, min(start + self.images, files.count))
            yield self._stacked([files.read(number, self.device) for number in numbers])

    def _stacked(self, images: Sequence[Maps]) -> Batch:
        maps = {kind: torch.stack([each[kind] for each in images]) for kind in self.folders}
        maps[SEGMENTATION] = maps[SEGMENTATION][:, 0].long()
        return {task: (maps[IMAGE], maps[task]) for task in self.tasks}

    def loss(self, task: str, outputs: Any, targets: Tensor) -> Tensor:
        losses = {SEGMENTATION: metrics.segmentation_loss, DEPTH: metrics.depth_loss, NORMAL: metrics.normal_loss}
        return losses[task](outputs, targets)

    def meters(self) -> Mapping[str, Meter]:
        depth, normal = metrics.BatchMeans(metrics.depth_errors), metrics.BatchMeans(metrics.normal_errors)
        return {SEGMENTATION: metrics.Segmentation(self.classes), DEPTH: depth, NORMAL: normal}


class NYUv2(DensePrediction):
    """NYUv2 in the version of MTAN: segmentation in 13 classes, depth in metres and surface normals of 1449 images.

    795 images for training and 654 for test, of 288 × 384 pixels, in the folders `image`, `label`, `depth` and
    `normal`. Adam with a rate of 1e-4, halved every 100 of 200 epochs, and 2 images per step.

    Sources: Silberman et al. 2012 (data); Liu, Johns & Davison 2019 (arXiv 1803.10704). The settings are those of
    CAGrad (arXiv 2110.14048), Nash-MTL (arXiv 2202.01017) and FAMO (arXiv 2306.03792), with augmentation. Deviation:
    an epoch has 397 steps; there it has another one, with the one image that is left.

    Args:
        data: the folder, with `train` and `val`, each with these folders of `0.npy`, `1.npy`, ...
        batch: images per step, by default 2.
        architecture: `"mtan"`, SegNet with attention, or `"segnet"`, SegNet with hard sharing. "single-task" trains a
            SegNet for each task, with both.
        augmentation: enlarge training images by 1, 1.2 or 1.5 and mirror them, at random.
        validation: share of the training images, the last ones, on which the tested state is selected; neighbouring
            images may be of one scene. By default 0: as in the papers, validation is on the test images.
        averaged_epochs: number of last validations on the test images of which scores are means.
    """

    folders: ClassVar = {IMAGE: ("image",), SEGMENTATION: ("label",), DEPTH: ("depth",), NORMAL: ("normal",)}
    classes, images = 13, 2


class Cityscapes(DensePrediction):
    """Cityscapes in the version of MTAN: segmentation in 7 classes and inverse depth of 3475 street images.

    2975 images for training and 500 for test, of 128 × 256 pixels, in the folders `image`, `label_7` (or `label`) and
    `depth`. Depth is the disparity, from 0 to 0.5, so that relative errors are large. Adam as in `NYUv2`, and 8 images
    per step.

    Sources: Cordts et al. 2016 (arXiv 1604.01685); Liu, Johns & Davison 2019 (arXiv 1803.10704), and for the settings
    as in `NYUv2`. Deviation: an epoch has 371 steps; there it has another one, with the 7 images that are left.
    As there, the disparity of an enlarged image is divided by the scale, although an enlarged object is nearer.

    Args:
        data: the folder, with `train` and `val`, each with these folders of `0.npy`, `1.npy`, ...
        batch: images per step, by default 8.
        architecture: `"mtan"`, SegNet with attention, or `"segnet"`, SegNet with hard sharing. "single-task" trains a
            SegNet for each task, with both.
        augmentation: enlarge training images by 1, 1.2 or 1.5 and mirror them, at random.
        validation: share of the training images, the last ones, on which the tested state is selected; neighbouring
            images may be of one scene. By default 0: as in the papers, validation is on the test images.
        averaged_epochs: number of last validations on the test images of which scores are means.
    """

    folders: ClassVar = {IMAGE: ("image",), SEGMENTATION: ("label_7", "label"), DEPTH: ("depth",)}
    classes, images = 7, 8
