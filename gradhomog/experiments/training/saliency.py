"""SmoothGrad saliency of adapted networks, and the maps of homogenizers, for a few test images."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog.experiments.results.artifacts import Array, SaliencyMaps
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import Task

IMAGES = 6
"""One query image from each of the first test tasks; consecutive tasks cycle through the domains. With more domains,
one image from each."""

# Smilkov et al. recommend noise of 10 to 20 % of the image's range, and see little change beyond 50 samples; 16 of 6
# images cost about 1.3 s with conv4-16 at 28 px on one core.
SAMPLES, NOISE = 16, 0.1


def write_saliency_maps(learner: Learner, stream: EpisodeStream, device: str, folder: Path) -> None:
    """Write `saliency_maps.npz` for a few test images. Other inputs and regression write no file.

    An error is printed on stderr and does not stop the run: the result of a run does not depend on these maps.
    """
    if len(stream.domains[0].input_shape) != 3 or stream.domains[0].outputs is not None:
        return
    try:
        tasks = [stream.task(index).to(device) for index in range(max(IMAGES, len(stream.domains)))]
        compute_saliency_maps(learner, tasks).write(folder)
    except Exception as error:  # third-party learners and homogenizers may raise anything
        print(f"{folder}: no saliency maps: {type(error).__name__}: {error}", file=sys.stderr)


def compute_saliency_maps(learner: Learner, tasks: Sequence[Task]) -> SaliencyMaps:
    """Return the first query image of each task, its saliency under the adapted network, and the homogenizers' maps.

    Saliency is of the network adapted to the task, without homogenizers. The homogenizers' maps are of the network
    before adaptation. The learner, its homogenizers and the global generators do not change.
    """
    generator = torch.Generator().manual_seed(0)
    maps: dict[str, list[Tensor]] = {}
    saliency: list[Tensor] = []
    probabilities: list[float] = []
    with learner.mode(training=False):
        for task in tasks:
            outputs = learner.adapted_outputs(task.support_x, task.support_y, task.query_x).detach()
            probabilities.append(float(outputs[0].softmax(0)[task.query_y[0]]))
            gradient = smooth_grad(true_class_output(learner, task), task.query_x[0], generator)
            saliency += [] if gradient is None else [gradient]
            for name, value in _homogenizer_maps(learner, task.query_x).items():
                maps.setdefault(name, []).append(value[0])
    return SaliencyMaps(
        _array([task.query_x[0] for task in tasks]),
        tuple(task.domain for task in tasks),
        np.array(probabilities, dtype=np.float32),
        _array(saliency) if len(saliency) == len(tasks) else None,
        {name: _array(values) for name, values in maps.items()},
    )


def smooth_grad(
    score: Callable[[Tensor], Tensor],
    x: Tensor,
    generator: torch.Generator,
    samples: int = SAMPLES,
    noise: float = NOISE,
) -> Tensor | None:
    """Return S(x) = 1/n Σ_k ∂score(x + δ_k)/∂x, δ_k ~ N(0, σ²): signed, with the shape of x.

    Args:
        score: maps an input to a scalar.
        generator: on the CPU: all devices draw the same noise.
        samples: n ≥ 1.
        noise: σ as a share of the range of x, ≥ 0.

    Returns None if `score` is not differentiable w.r.t. its input.

    Source: Smilkov et al. 2017, arXiv 1706.03825; Zhang et al. 2023 (RotoGBML), the equation of S(x) next to
    the figure of saliency maps.
    """
    sigma = noise * float(x.max() - x.min())
    total = torch.zeros_like(x)
    for _ in range(samples):
        delta = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        noisy = (x.detach() + sigma * delta).requires_grad_()
        with torch.enable_grad():
            value = score(noisy)
        if not value.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(value, noisy, allow_unused=True)
        if gradient is None:
            return None
        total += gradient
    return total / samples


def true_class_output(learner: Learner, task: Task) -> Callable[[Tensor], Tensor]:
    """Return the function from a task's first query image to the output of its true class.

    The other queries stay in the batch: with batch normalization, outputs depend on all queries.
    """

    def score(image: Tensor) -> Tensor:
        queries = torch.cat([image[None], task.query_x[1:]])
        outputs = learner.adapted_outputs(task.support_x, task.support_y, queries)
        return outputs[0, task.query_y[0]]

    return score


def _homogenizer_maps(learner: Learner, inputs: Tensor) -> dict[str, Tensor]:
    """Return all maps `[n, rows, columns]` of all homogenizers by `homogenizer: name`; non-spatial ones are omitted."""
    spatial: dict[str, Tensor] = {}
    selectors: list[str] = []
    for member in learner.homogenizers.members:
        selectors.append(member.selector)
        occurrence = selectors.count(member.selector)
        selector = f"{member.selector}#{occurrence}" if occurrence > 1 else member.selector
        with torch.no_grad():
            maps = member.call("maps", learner.encoder, inputs)
        for name, value in maps.items():
            if value.dim() == 3:
                spatial[f"{selector}: {name}"] = value
    return spatial


def _array(values: Sequence[Tensor]) -> Array:
    return torch.stack([value.detach().float().cpu() for value in values]).numpy()
