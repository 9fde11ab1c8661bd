"""SmoothGrad saliency of adapted networks, and the maps of homogenizers, on a few images of the test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradhomog.experiments.data.sampler import EpisodeStream
from gradhomog.experiments.results.saliency_maps import Array, Looks
from gradhomog.learners import Learner
from gradhomog.tasks import Task

IMAGES = 6
"""One query image from each of the first tasks of the test, which take turns with the domains."""

# Smilkov et al. recommend noise of 10 to 20 % of the image's range, and see little change beyond 50 samples; 16 of 6
# images cost about 1.3 s with conv4-16 at 28 px on one core.
SAMPLES, NOISE = 16, 0.1


def write_looks(learner: Learner, stream: EpisodeStream, device: str, folder: Path) -> None:
    """Look at images of the test, if they are images, and write `looks.npz`.

    What goes wrong is told on stderr and stops nothing: a run's result does not depend on a picture.
    """
    if len(stream.domains[0].input_shape) != 3 or stream.domains[0].outputs is not None:
        return
    try:
        look_at(learner, [stream.task(index).to(device) for index in range(IMAGES)]).write(folder)
    except Exception as error:  # a learner or homogenizer of somebody else's may raise anything
        print(f"{folder}: no saliency is drawn: {type(error).__name__}: {error}", file=sys.stderr)


def look_at(learner: Learner, tasks: Sequence[Task]) -> Looks:
    """The first query image of each task, its saliency under the network adapted to the task, and all maps of it.

    Homogenizers are removed from the network whose saliency this is; their maps are those of the network before
    adaptation. Nothing of the learner, its homogenizers or the global generators changes.
    """
    generator = torch.Generator().manual_seed(0)
    maps: dict[str, list[Tensor]] = {}
    saliency: list[Tensor] = []
    probabilities: list[float] = []
    with learner.mode(training=False):
        for task in tasks:
            outputs = learner.adapted_outputs(task.support_x, task.support_y, task.query_x).detach()
            probabilities.append(float(outputs[0].softmax(0)[task.query_y[0]]))
            found = smooth_grad(true_output(learner, task), task.query_x[0], generator)
            saliency += [] if found is None else [found]
            for name, value in _maps(learner, task.query_x).items():
                maps.setdefault(name, []).append(value[0])
    return Looks(
        _array([task.query_x[0] for task in tasks]),
        tuple(task.domain for task in tasks),
        np.array(probabilities, dtype=np.float32),
        _array(saliency) if len(saliency) == len(tasks) else None,
        {name: _array(values) for name, values in maps.items()},
        any(member.homogenizer.overrides("attach") for member in learner.homogenizers.members),
    )


def smooth_grad(
    score: Callable[[Tensor], Tensor],
    x: Tensor,
    generator: torch.Generator,
    samples: int = SAMPLES,
    noise: float = NOISE,
) -> Tensor | None:
    """S(x) = 1/n Σ_k ∂score(x + δ_k)/∂x, δ_k ~ N(0, σ²), of the shape of x; signed.

    Args:
        score: maps an input to a scalar.
        generator: on the CPU, so that all devices draw the same noise.
        samples: n ≥ 1.
        noise: σ as a share of the range of x, ≥ 0.

    None where the score does not tell how it depends on its input.

    Source: Smilkov et al. 2017, arXiv 1706.03825; Zhang et al. 2023 (RotoGBML), the equation of S(x) beside the
    figure of saliency maps.
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


def true_output(learner: Learner, task: Task) -> Callable[[Tensor], Tensor]:
    """The output of the true class of a task's first query image as a function of that image.

    The other queries stay as they are: with batch normalization the network is a function of them all.
    """

    def score(image: Tensor) -> Tensor:
        queries = torch.cat([image[None], task.query_x[1:]])
        outputs = learner.adapted_outputs(task.support_x, task.support_y, queries)
        return outputs[0, task.query_y[0]]

    return score


def _maps(learner: Learner, inputs: Tensor) -> dict[str, Tensor]:
    """All maps `[n, rows, columns]` of all homogenizers, by `homogenizer: name`; what has no place is left out."""
    found: dict[str, Tensor] = {}
    selectors: list[str] = []
    for member in learner.homogenizers.members:
        selectors.append(member.selector)
        again = selectors.count(member.selector)
        selector = f"{member.selector}#{again}" if again > 1 else member.selector
        with torch.no_grad():
            maps = member.maps(learner.encoder, inputs)
        for name, value in maps.items():
            if value.dim() == 3:
                found[f"{selector}: {name}"] = value
    return found


def _array(values: Sequence[Tensor]) -> Array:
    return torch.stack([value.detach().float().cpu() for value in values]).numpy()
