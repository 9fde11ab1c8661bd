"""Losses and metrics of dense prediction: segmentation, depth and surface normals.

As in the code of MTAN, which CAGrad, Nash-MTL, FAMO and FairGrad use, mIoU and pixel accuracy are those of one
confusion matrix of all images. All other metrics are means over batches of the value for the valid pixels of a batch,
so that they depend on the number of images in it; the mean of the medians of batches is not the median of all pixels.
LibMTL accumulates all pixels instead.
"""

from collections.abc import Callable, Mapping
from statistics import fmean

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from gradhomog_data.problems._dense_images import DEPTH, IGNORED, NORMAL, SEGMENTATION

ANGLES = (11.25, 22.5, 30.0)

METRICS = {
    SEGMENTATION: {"mIoU": "accuracy", "pixel accuracy": "accuracy"},
    DEPTH: {"absolute depth error": "error", "relative depth error": "error"},
    NORMAL: {"mean angle": "error", "median angle": "error", **{f"within {angle:g}°": "accuracy" for angle in ANGLES}},
}
"""The metric of each name, by task, see `gradhomog.Problem.metric`; angles are in degrees."""


def segmentation_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over pixels with a class, of logits `[n, classes, height, width]`."""
    return cross_entropy(outputs, labels, ignore_index=IGNORED)


def depth_loss(outputs: Tensor, depths: Tensor) -> Tensor:
    """Return the mean of |output - depth| over pixels with a depth, which is not 0."""
    valid = depths != 0
    return ((outputs - depths).abs() * valid).sum() / valid.sum()


def normal_loss(outputs: Tensor, normals: Tensor) -> Tensor:
    """Return 1 - the mean of ⟨output / ‖output‖, normal⟩ over pixels with a normal, which is not 0."""
    return 1 - (normalize(outputs, dim=1) * normals).sum() / (normals != 0).any(1).sum()


class Segmentation:
    """Mean intersection over union, mean over classes that occur in targets or outputs, and share of right pixels."""

    def __init__(self, classes: int) -> None:
        self.confusion = torch.zeros(classes, classes, dtype=torch.float64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        classes, valid = len(self.confusion), targets != IGNORED
        pairs = classes * targets[valid] + outputs.argmax(1)[valid]
        self.confusion += torch.bincount(pairs, minlength=classes**2).view(classes, classes).cpu()

    def scores(self) -> Mapping[str, float]:
        right = self.confusion.diagonal()
        union = self.confusion.sum(0) + self.confusion.sum(1) - right
        ratios = (right / union)[union > 0]
        return {"mIoU": float(ratios.mean()), "pixel accuracy": float(right.sum() / self.confusion.sum())}


class BatchMeans:
    """The mean over batches of the metrics of each batch, which `measure(outputs, targets)` returns by name."""

    def __init__(self, measure: Callable[[Tensor, Tensor], dict[str, float]]) -> None:
        self.measure, self.batches = measure, list[dict[str, float]]()

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.batches.append(self.measure(outputs, targets))

    def scores(self) -> Mapping[str, float]:
        return {name: fmean(batch[name] for batch in self.batches) for name in self.batches[0]}


def depth_errors(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the means of |output - depth| and |output - depth| / depth over the pixels with a depth."""
    depths = targets[targets != 0]
    errors = (outputs[targets != 0] - depths).abs()
    return {"absolute depth error": float(errors.mean()), "relative depth error": float((errors / depths).mean())}


def normal_errors(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return mean and median of the angle in degrees between output and normal, and shares below three angles."""
    cosines = (normalize(outputs, dim=1) * targets).sum(1)[(targets != 0).any(1)]
    angles = cosines.clamp(-1, 1).acos().rad2deg().cpu().numpy()
    shares = {f"within {angle:g}°": float((angles < angle).mean()) for angle in ANGLES}
    return {"mean angle": float(angles.mean()), "median angle": float(np.median(angles)), **shares}
