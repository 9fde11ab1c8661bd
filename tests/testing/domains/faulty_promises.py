"""Faulty before a task is drawn: in what they say, in attributes, limits and variants."""

from __future__ import annotations

import itertools

import torch

from gradhomog import DataError, OptionError
from tests.testing.domains.faults import fails
from tests.testing.domains.good import OWNERS, Blots, Ramps


@fails("documented", "the factory's docstring does not describe these options: noise")
class UndocumentedOption(Blots):
    """An undocumented option."""


@fails("options_validated", "option `noise` has no type annotation, so a value of a wrong type cannot be refused")
class NoAnnotation(Ramps):
    """Accepts everything."""

    def __init__(self, variant, *, size=28, noise=0.0):
        super().__init__(variant, noise=noise)


@fails("options_validated", "`size`=0 is accepted: raise gradhomog.OptionError that names it")
class AcceptsNoPixels(Blots):
    """Images without pixels."""

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        super().__init__(variant, size=max(size, 4), noise=noise)


@fails("draws_tasks", "KeyError: 'weights'")
class RaisesWhenDrawing(Blots):
    """Looks for what is not there."""

    def sample(self, split, random, **numbers):
        return {}["weights"]


@fails("draws_tasks", "DataError: .*split 'all': 2 ways of 1 \\+ 1 images asked for; there are 0 classes")
class WithoutClasses(Blots):
    """A data set that was not found is an empty one."""

    def classes(self, split):
        return []


@fails("draws_tasks", "RuntimeError: no such file")
class CannotBeMade(Blots):
    """Raises what is no error of a plugin."""

    def paint(self, blots, noise):
        raise RuntimeError("no such file")


@fails("attributes", r"`input_shape` must be a tuple of positive integers; it is \[1, 28, 28\]")
class ShapeInList(Blots):
    """As JSON has it."""

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        super().__init__(variant, size=size, noise=noise)
        self.input_shape = [1, size, size]

    def images(self, drawn, rows):
        return torch.from_numpy(self.pictures[drawn[:, None], rows].reshape(-1, *self.input_shape))


@fails("attributes", "`outputs` must be None .* or a positive integer; it is 0")
class NoOutputs(Ramps):
    """Zero for `none`."""

    def __init__(self, variant, **options):
        super().__init__(variant, **options)
        self.outputs = 0


@fails("attributes", "`name` differs between two made alike: 'blots 1' and 'blots 2'")
class NumbersItself(Blots):
    """Another name for each object."""

    numbers = itertools.count(1)

    def __init__(self, variant, **options):
        super().__init__(variant, **options)
        self.name = f"blots {next(self.numbers)}"


@fails("image_size", r"made with size=20, it has inputs of the shape \(1, 28, 28\)")
class KeepsItsOwnSize(Blots):
    """Images as large as they come."""

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        if size < 1:
            raise OptionError(f"`size` must be positive; got {size!r}.")
        super().__init__(variant, size=28, noise=noise)


@fails("refuses_too_much", "`check` accepts 1000000 ways of the split 'train'")
class ChecksNothing(Blots):
    """Leaves it to `sample` to find out."""

    def check(self, split, *, ways, shots, queries):
        self.classes(split)


@fails("refuses_too_much", r"`check` refuses .* without naming \['blots:one', 'train'\]: too many")
class RefusesWithoutNames(Blots):
    """Says what is wrong, and not where."""

    def check(self, split, **numbers):
        try:
            super().check(split, **numbers)
        except DataError as error:
            raise DataError("too many" if "asked for" in str(error) else str(error)) from None


@fails("refuses_too_much", "IndexError: out of range")
class RefusesByAnyError(Blots):
    """What a user is told of as a defect, with a traceback."""

    def check(self, split, *, ways, shots, queries):
        if ways > 1000:
            raise IndexError("out of range")
        super().check(split, ways=ways, shots=shots, queries=queries)


@fails("serves_what_it_accepts", "`check` accepts .*'shots': 8.*; `sample` raises ValueError: Cannot take a larger")
class CountsQueriesOnly(Blots):
    """Forgets that the shots are taken from the same images."""

    def check(self, split, *, ways, shots, queries):
        super().check(split, ways=ways, shots=0, queries=max(shots, queries))


@fails("serves_what_it_accepts", r"`support_x`: torch.float32 \(24, 1, 28, 28\).*; expected .*\(40, 1, 28, 28\)")
class ServesFewer(Blots):
    """Takes what there is, without a word."""

    def check(self, split, *, ways, shots, queries):
        super().check(split, ways=min(ways, 20) if ways < 1000 else ways, shots=shots, queries=queries)

    def sample(self, split, random, *, ways, shots, queries):
        ways = min(ways, len(self.classes(split)))
        return super().sample(split, random, ways=ways, shots=shots, queries=queries)


@fails("variants_made", "the variant 'three' is listed, and refused", variants=("one", "two", "three"))
class ListsTooMany(Blots):
    """A variant that was planned."""


@fails("variants_made", "the variants 'one' and 'two' are both called 'blots'")
class OneNameForAll(Blots):
    """The domain's name, and not the variant's."""

    def __init__(self, variant, **options):
        super().__init__(variant, **options)
        self.name = "blots"


@fails("unknown_variant_refused", "the variant 'no_such_variant' is accepted")
class TakesAnyVariant(Blots):
    """What is not known is the first."""

    def __init__(self, variant, **options):
        super().__init__(variant if variant == "two" else "one", **options)


@fails("unknown_variant_refused", "KeyError|could not be made")
class LooksVariantsUp(Blots):
    """A dictionary's error is no message."""

    def __init__(self, variant, **options):
        super().__init__({"one": "one", "two": "two"}[variant], **options)


@fails("all_serves", "the split 'all' refuses .*, which the split 'train' serves")
class WithoutAll(Blots):
    """Three splits, and no fourth."""

    def classes(self, split):
        return [number for number in super().classes(split) if split == OWNERS[number % 4]]


@fails("unknown_split_refused", "`check` accepts the split 'tset'")
class AnyOtherSplitIsTest(Blots):
    """What is neither training nor validation."""

    def classes(self, split):
        return super().classes(split if split in ("train", "val", "all") else "test")


@fails("unknown_split_refused", "`sample` accepts the split 'tset'")
class SamplesAnySplit(Ramps):
    """Relies on `check` having been called."""

    def sample(self, split, random, **numbers):
        return super().sample("test" if split == "tset" else split, random, **numbers)


@fails("splits_share_no_class", "up to 24 of train, 12 of val, 24 of test classes, and of all only 48")
class TestsOnSomeItTrainedOn(Blots):
    """Some of the classes in two splits."""

    def classes(self, split):
        return list(range(20, 44)) if split == "test" else super().classes(split)
