"""Correct domains in small methods. Each faulty domain differs from one of them by a single error."""

from typing import get_args

import numpy as np
import torch

from gradhomog import DataError, Domain, DomainSpec, OptionError, Split, Task

CLASSES, INSTANCES = 48, 8
OWNERS = ("train", "val", "train", "test")


class Blots(Domain):
    """Images of one or two blots. Blot positions define a class, which has eight noisy images.

    Args:
        variant: `"one"` or `"two"`.
        size: side of the images in pixels, ≥ 4.
        noise: in [0, 1], noise of each pixel.
    """

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        if variant not in ("one", "two"):
            raise OptionError(f"`blots` needs one of the variants one, two; got {variant!r}.")
        if size < 4:
            raise OptionError(f"`size` must be at least 4; got {size!r}.")
        if not 0 <= noise <= 1:
            raise OptionError(f"`noise` must be in [0, 1]; got {noise!r}.")
        self.name = f"blots:{variant}"
        self.input_shape = (1, size, size)
        self.outputs = None
        self.pictures = self.render(1 if variant == "one" else 2, noise)

    def render(self, blots, noise):
        """All images, float32 `[classes, instances, 1, size, size]` in [−1, 1]."""
        random = np.random.default_rng(blots)
        size = self.input_shape[1]
        centres = random.uniform(0, size, (CLASSES, 1, blots, 2, 1, 1))
        y, x = np.mgrid[:size, :size]
        squared_distances = (centres[:, :, :, 0] - x) ** 2 + (centres[:, :, :, 1] - y) ** 2
        ink = np.exp(-squared_distances / size).max(axis=2)
        drawn = ink + noise * random.standard_normal((CLASSES, INSTANCES, size, size))
        return np.clip(2 * drawn - 1, -1, 1).astype(np.float32)[:, :, None]

    def classes(self, split):
        if split not in get_args(Split):
            raise DataError(f"domain {self.name!r}: `split` must be one of {get_args(Split)}; got {split!r}.")
        return [number for number in range(CLASSES) if split in ("all", OWNERS[number % 4])]

    def check(self, split, *, ways, shots, queries):
        count = len(self.classes(split))
        if count < ways or shots + queries > INSTANCES:
            raise DataError(
                f"domain {self.name!r}, split {split!r}: {ways} ways of {shots} + {queries} images requested; there "
                f"are {count} classes of {INSTANCES}. Request fewer."
            )

    def sample(self, split, random, *, ways, shots, queries):
        self.check(split, ways=ways, shots=shots, queries=queries)
        drawn = random.choice(self.classes(split), size=ways, replace=False)
        rows = np.stack([self.instances(random, shots + queries) for _ in drawn])
        return Task(
            self.images(drawn, rows[:, :shots]), self.labels(ways, shots),
            self.images(drawn, rows[:, shots:]), self.labels(ways, queries), self.name, self.class_numbers(drawn),
        )  # fmt: skip

    def class_numbers(self, drawn):
        return torch.from_numpy(drawn.astype(np.int64))

    def instances(self, random, count):
        return random.choice(INSTANCES, size=count, replace=False)

    def images(self, drawn, rows):
        return torch.from_numpy(self.pictures[drawn[:, None], rows].reshape(-1, *self.input_shape))

    def labels(self, ways, count):
        return torch.arange(ways).repeat_interleave(count)


class Ramps(Domain):
    """Regression on two lines a·x, y = a₁x and a₂x. Each slope a belongs to one split.

    Args:
        noise: ≥ 0, noise of the targets.
    """

    def __init__(self, variant, *, size=28, noise: float = 0.0):
        if variant:
            raise OptionError(f"`ramps` has no variants; got {variant!r}.")
        if not 0 <= noise < float("inf"):
            raise OptionError(f"`noise` must be finite and not negative; got {noise!r}.")
        self.name, self.input_shape, self.outputs, self.noise = "ramps", (1,), 2, noise

    def check(self, split, *, ways, shots, queries):
        if split not in get_args(Split):
            raise DataError(f"domain {self.name!r}: `split` must be one of {get_args(Split)}; got {split!r}.")

    def slopes(self, split, random):
        owners = [number for number in range(40) if split in ("all", OWNERS[number % 4])]
        return (owners[random.integers(len(owners))] + random.random(2)) / 40

    def sample(self, split, random, *, ways, shots, queries):
        self.check(split, ways=ways, shots=shots, queries=queries)
        slopes = self.slopes(split, random)
        x = random.uniform(-1, 1, (shots + queries, 1))
        y = slopes * x + self.noise * random.standard_normal((shots + queries, 2))
        inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(y).float()
        return Task(inputs[:shots], targets[:shots], inputs[shots:], targets[shots:], self.name)


BLOTS = DomainSpec(Blots, summary="images of blots", reference="new", variants=("one", "two"))
RAMPS = DomainSpec(Ramps, summary="two lines through the origin", reference="new")
GOOD = {Blots: BLOTS, Ramps: RAMPS}
