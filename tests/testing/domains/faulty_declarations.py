"""Domains with faulty documentation, options, attributes, limits, splits or variants."""

from __future__ import annotations

import itertools

import torch

from gradhomog import DataError, OptionError
from tests.testing.domains.good import OWNERS, Blots, Ramps
from tests.testing.faults import fails


@fails("options_validated", "`size`=0 is accepted: raise a gradhomog.OptionError that names the option")
class AcceptsSizeZero(Blots):
    """Accepts a size of 0."""

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        super().__init__(variant, size=max(size, 4), noise=noise)


@fails("draws_tasks", "DataError: .*split 'all': 2 ways of 1 \\+ 1 images requested; there are 0 classes")
class EmptyDataSet(Blots):
    """A data set without classes."""

    def classes(self, split):
        return []


@fails("draws_tasks", "RuntimeError: no such file")
class RaisesWhenMade(Blots):
    """Raises an error that is no GradhomogError."""

    def render(self, blots, noise):
        raise RuntimeError("no such file")


@fails("attributes", r"`input_shape` must be a tuple of positive integers; got \[1, 28, 28\]")
class ShapeAsList(Blots):
    """A list instead of a tuple, as read from JSON."""

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        super().__init__(variant, size=size, noise=noise)
        self.input_shape = [1, size, size]

    def images(self, drawn, rows):
        return torch.from_numpy(self.pictures[drawn[:, None], rows].reshape(-1, *self.input_shape))


@fails("attributes", "`outputs` must be None .* or a positive integer; got 0")
class ZeroOutputs(Ramps):
    """Zero instead of None."""

    def __init__(self, variant, **options):
        super().__init__(variant, **options)
        self.outputs = 0


@fails("attributes", "`name` differs between two domains made with the same options: 'blots 1' and 'blots 2'")
class CountsInstancesInName(Blots):
    """Another name for each instance."""

    numbers = itertools.count(1)

    def __init__(self, variant, **options):
        super().__init__(variant, **options)
        self.name = f"blots {next(self.numbers)}"


@fails("image_size", r"with size=20, inputs have the shape \(1, 28, 28\); expected \(1, 20, 20\)")
class IgnoresSize(Blots):
    """Images of a fixed size."""

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        if size < 1:
            raise OptionError(f"`size` must be positive; got {size!r}.")
        super().__init__(variant, size=28, noise=noise)


@fails("excessive_requests_rejected", "`check` accepts 1000000 ways for the split 'train'")
class AcceptsAnyRequest(Blots):
    """Leaves the limits to `sample`."""

    def check(self, split, *, ways, shots, queries):
        self.classes(split)


@fails("excessive_requests_rejected", r"`check` rejects .* without naming \['blots:one', 'train'\]: too many")
class ErrorWithoutNames(Blots):
    """An error without the domain and the split."""

    def check(self, split, **numbers):
        try:
            super().check(split, **numbers)
        except DataError as error:
            raise DataError("too many" if "requested" in str(error) else str(error)) from None


@fails("accepted_requests_succeed", "`check` accepts .*'shots': 8.*; `sample` raises ValueError: Cannot take a larger")
class IgnoresShots(Blots):
    """Ignores that support images are drawn from the same images."""

    def check(self, split, *, ways, shots, queries):
        super().check(split, ways=ways, shots=0, queries=max(shots, queries))


@fails("accepted_requests_succeed", r"`support_x`: torch.float32 \(24, 1, 28, 28\).*; expected .*\(40, 1, 28, 28\)")
class DrawsFewerWays(Blots):
    """Silently draws fewer ways than requested."""

    def check(self, split, *, ways, shots, queries):
        super().check(split, ways=min(ways, 20) if ways < 1000 else ways, shots=shots, queries=queries)

    def sample(self, split, random, *, ways, shots, queries):
        ways = min(ways, len(self.classes(split)))
        return super().sample(split, random, ways=ways, shots=shots, queries=queries)


@fails("listed_variants_work", "the listed variant 'three' is rejected", variants=("one", "two", "three"))
class ListsUnknownVariant(Blots):
    """Lists a variant that is not implemented."""


@fails("listed_variants_work", "the variants 'one' and 'two' have the same name 'blots'")
class SameNameForAllVariants(Blots):
    """A name without the variant."""

    def __init__(self, variant, **options):
        super().__init__(variant, **options)
        self.name = "blots"


@fails("unknown_variant_rejected", "the variant 'no_such_variant' is accepted")
class AcceptsAnyVariant(Blots):
    """Replaces an unknown variant by the first."""

    def __init__(self, variant, **options):
        super().__init__(variant if variant == "two" else "one", **options)


@fails("all_split_is_complete", "the split 'all' rejects .*, which the split 'train' supports")
class EmptyAllSplit(Blots):
    """The split `all` has no classes."""

    def classes(self, split):
        return [number for number in super().classes(split) if split == OWNERS[number % 4]]


@fails("unknown_split_rejected", "`check` accepts the split 'tset'")
class AcceptsAnySplit(Blots):
    """Replaces an unknown split by `test`."""

    def classes(self, split):
        return super().classes(split if split in ("train", "val", "all") else "test")


@fails("unknown_split_rejected", "`sample` accepts the split 'tset'")
class SamplesAnySplit(Ramps):
    """`sample` relies on a previous call of `check`."""

    def sample(self, split, random, **numbers):
        return super().sample("test" if split == "tset" else split, random, **numbers)


@fails("splits_share_no_class", "48 ways .* 'all', fewer .* \\(24 for 'train', 12 for 'val', 24 for 'test'\\)")
class OverlappingSplits(Blots):
    """Some classes are in two splits."""

    def classes(self, split):
        return list(range(20, 44)) if split == "test" else super().classes(split)
