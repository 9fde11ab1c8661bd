"""Pictures of the methods' pages: directions in the plane; features and masks of methods that act within a network."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import gradhomog
from _site import plane

PLANE = (
    "Directions of `{name}` in {steps} steps with constant gradients of two tasks and falling losses (later: darker), "
    "in three situations."
)


OPTIONS = {"reweight": "reweight(beta=0, solver='fixed_point')", "static": "static(weights=[0.5, 1.5])"}


def draw(name: str, folder: Path) -> str:
    """Write the picture of a method as SVG, and return its caption."""
    folder.mkdir(parents=True, exist_ok=True)
    make, caption = SPECIAL.get(name, (plane.method, PLANE))
    plane.save(make(OPTIONS.get(name, name)), folder / f"{name}.svg")
    return caption.format(name=OPTIONS.get(name, name), steps=plane.STEPS)


def rotated(name: str) -> Figure:
    """The gradients that reach the encoder for constant gradients of the heads, while the rotations are learned."""
    figure = Figure(figsize=(7.2, 2), layout="constrained")
    points = []
    for axes, (title, rows) in zip(figure.subplots(1, len(plane.ROWS)), plane.ROWS.items(), strict=True):
        plane.panel(axes, rows, title)
        gradients = list(_reaching(name, torch.tensor(rows)))
        for index, both in enumerate(gradients):
            for tip, color in zip(both.tolist(), (plane.FIRST, plane.SECOND), strict=True):
                plane.arrow(axes, tip, color, alpha=0.1 + 0.9 * (index + 1) / len(gradients))
        points += [*rows, *(tip for both in gradients for tip in both.tolist())]
    plane.limits(figure, points)
    plane.legend(figure, [("task 1", plane.FIRST), ("task 2", plane.SECOND), ("mean without the method", plane.MEAN)])
    return figure


def _reaching(name: str, heads: torch.Tensor, steps: int = 60) -> Iterator[torch.Tensor]:
    """Every tenth of the gradients w.r.t. the encoder's output, with losses that are linear in the features."""
    pipe = gradhomog.pipeline(name)
    keys = [gradhomog.TaskKey(slot) for slot in range(2)]
    for step in range(steps):
        features = torch.ones(2, 1, 2, requires_grad=True)
        transformed = pipe.transform(features, keys)[-1]
        losses = (transformed * heads[:, None]).sum((1, 2))
        (gradients,) = torch.autograd.grad(losses.sum(), features)
        pipe.combine(heads, losses=[1.0, 1.0], features=features.detach(), feature_grads=heads[:, None])
        if step % 10 == 0 or step == steps - 1:
            yield gradients[:, 0]


def masked(name: str) -> Figure:
    """Glyphs before a texture, and the probability with which `isi` drops the activations over each patch."""
    domain = gradhomog.domain("glyphs:latin(background=0.8)")
    task = domain.sample("train", np.random.default_rng(3), ways=3, shots=1, queries=1)
    encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1))
    [member] = gradhomog.pipeline("isi(rate=0.5)").members
    [maps] = member.call("maps", encoder, task.support_x).values()
    figure = Figure(figsize=(7.2, 1.6), layout="constrained")
    for index, axes in enumerate(figure.subplots(1, 6)):
        image = index // 2
        axes.axis("off")
        if index % 2 == 0:
            axes.imshow(task.support_x[image, 0], cmap="gray")
        else:
            axes.imshow(maps[image], cmap="magma")
    return figure


def transformed(name: str) -> Figure:
    """Two channels of normalized features of two classes, and the same features transformed by `fwt` in five tasks."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 40, 2, generator=generator) * 0.4 + torch.tensor([[[-1.0, -0.5]], [[1.0, 0.5]]])
    encoder = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    pipe = gradhomog.pipeline(name)
    figure = Figure(figsize=(7.2, 1.6), layout="constrained")
    panels = figure.subplots(1, 6, sharex=True, sharey=True)
    with torch.no_grad(), pipe.attached(encoder):
        for task, axes in enumerate(panels):
            encoder.train(task > 0)  # an encoder in evaluation mode is unchanged
            pipe.begin(gradhomog.TaskKey(task), "support")
            points = encoder(features.flatten(0, 1)).unflatten(0, (2, 40))
            for of_class, color in zip(points, (plane.FIRST, plane.SECOND), strict=True):
                axes.scatter(*of_class.T, s=3, color=color)
            axes.set_title(f"task {task}" if task else "unchanged", fontsize=8)
            axes.set_xticks([])
            axes.set_yticks([])
    return figure


ROTATED = (
    "Gradients w.r.t. the output of the encoder for two tasks whose heads have constant gradients, over 60 steps of "
    "`{name}` (later: darker)."
)
MASKED = "Glyphs before a texture; beside each, the probability with which activations are dropped: brighter is higher."
TRANSFORMED = (
    "Two channels of the features of two classes, unchanged and transformed by `{name}` with the random scales and "
    "shifts of five tasks."
)
SPECIAL: Mapping[str, tuple[Callable[[str], Figure], str]] = {
    "rotate": (rotated, ROTATED),
    "rotograd": (rotated, ROTATED),
    "isi": (masked, MASKED),
    "fwt": (transformed, TRANSFORMED),
    "rotogbml": (lambda name: rotated("rotate"), ROTATED.replace("`{name}`", "its part `rotate`")),
}
"""Pictures of methods that act within a network, with their captions."""
