"""Faulty domains, by the module of the check that must find them."""

import copy
import dataclasses
import itertools

import numpy as np
import torch

from gradhomog import DataError, OptionError
from tests.testing.domains.good import INSTANCES, OWNERS, Blots, Ramps
from tests.testing.faults import fails, fault

# A fault is its name, the good plugin, the check with its message, and the change.
# fmt: off


def after_making(**attributes):
    """Change attributes of the made domain; a function is called with it."""

    def initialize(self, good, *arguments, **options):
        good(*arguments, **options)
        for name, value in attributes.items():
            setattr(self, name, value(self) if callable(value) else value)

    return initialize


def changed_task(change):
    """Replace parts of each task by the result of a function of the task."""
    return lambda self, good, *arguments, **numbers: dataclasses.replace(
        task := good(*arguments, **numbers), **change(task))


# -- declarations and attributes -------------------------------------------------------------------------------------


def raises(self, good, *arguments):  # no GradhomogError
    raise RuntimeError("no such file")


class IgnoresSize(Blots):
    """Images of a fixed size."""

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        if size < 1:
            raise OptionError(f"`size` must be positive; got {size!r}.")
        super().__init__(variant, size=28, noise=noise)


class AcceptsSizeZero(Blots):
    """Accepts a size of 0."""

    def __init__(self, variant, *, size=28, noise: float = 0.3):
        super().__init__(variant, size=max(size, 4), noise=noise)


names = (f"blots {number}" for number in itertools.count(1))

fails("options_validated", "`size`=0 is accepted: raise a gradhomog.OptionError that names the option")(AcceptsSizeZero)
fault("EmptyDataSet", Blots, "draws_tasks",
      "DataError: .*split 'all': 2 ways of 1 \\+ 1 images requested; there are 0 classes",
      classes=lambda self, good, split: [])
fault("RaisesWhenMade", Blots, "draws_tasks", "RuntimeError: no such file", render=raises)
# A list instead of a tuple, as read from JSON.
fault("ShapeAsList", Blots, "attributes",
      r"`input_shape` must be a tuple of positive integers; got \[1, 28, 28\]",
      __init__=after_making(input_shape=lambda self: list(self.input_shape)))
fault("ZeroOutputs", Ramps, "attributes", "`outputs` must be None .* or a positive integer; got 0",
      __init__=after_making(outputs=0))
fault("CountsInstancesInName", Blots, "attributes",
      "`name` differs between two domains made with the same options: 'blots 1' and 'blots 2'",
      __init__=after_making(name=lambda self: next(names)))
fails("image_size", r"with size=20, inputs have the shape \(1, 28, 28\); expected \(1, 20, 20\)")(IgnoresSize)

# -- tasks -----------------------------------------------------------------------------------------------------------


def divided_by_their_range(task):  # which is 0 for a single point
    return {"query_x": task.query_x / (task.query_x.max() - task.query_x.min())}


def unbalanced(self, good, ways, count):
    labels = good(ways, count)
    if count > 1:
        labels[-1] = 0
    return labels


def as_a_tuple(self, good, split, random, **numbers):  # as in other libraries
    task = good(split, random, **numbers)
    return task.support_x, task.support_y, task.query_x, task.query_y


class ReturnsViews(Blots):
    """Returns views of the stored images instead of copies."""

    def sample(self, split, random, *, ways, shots, queries):
        task = super().sample(split, random, ways=ways, shots=shots, queries=queries)
        own = torch.from_numpy(self.pictures).reshape(-1, *self.input_shape)
        return dataclasses.replace(task, query_x=own[: len(task.query_x)])


def every_second_copied(self, good, split, random, **numbers):
    self.drawn += 1
    task = good(split, random, **numbers)
    return copy.deepcopy(task) if self.drawn % 2 else task


def at_most_30_tasks(self, good, split, random, **numbers):
    self.left -= 1
    if self.left < 0:
        raise RuntimeError("no more tasks")
    return good(split, random, **numbers)


fault("InFloat64", Blots, "inputs_fit", "`support_x` has the dtype torch.float64; expected torch.float32",
      images=lambda self, good, drawn, rows: good(drawn, rows).double())
fault("UnscaledPixels", Blots, "inputs_fit", r"`support_x`: pixels from 0 to 2\d\d\.?\d*; expected \[-1, 1\]",
      images=lambda self, good, drawn, rows: (good(drawn, rows) + 1) * 127.5)
fault("DividesByRange", Ramps, "inputs_fit", "`query_x` is not finite", sample=changed_task(divided_by_their_range))
fault("ReturnsTuple", Blots, "inputs_fit", "`sample` returns a tuple; expected a gradhomog.Task", sample=as_a_tuple)
fault("Unbalanced", Blots, "targets_fit", r"`\w+_y`: labels \[.*, 0\]; expected [2-5] of each of 0..[1-5]",
      labels=unbalanced)
fault("OneTargetOfTwo", Ramps, "targets_fit", r"`support_y` has the shape \(1,\); expected \(1, 2\)",
      sample=changed_task(lambda task: {"support_y": task.support_y[:, 0], "query_y": task.query_y[:, 0]}))
fault("DrawsWithReplacement", Blots, "support_and_query_disjoint",
      "inputs are in both the support set and the query set",
      instances=lambda self, good, random, count: random.choice(INSTANCES, size=count))
fault("ClassesOfSplitOnly", Blots, "classes_consistent", r"`classes\(split\)` is given, but `Task.classes` is not",
      class_numbers=lambda self, good, drawn: None)
fault("ClassesOfTaskOnly", Ramps, "classes_consistent", r"`Task.classes` is given, but `classes\(split\)` is not",
      sample=changed_task(lambda task: {"classes": torch.zeros(1).long()}))
fault("LabelsAsClasses", Blots, "classes_consistent",
      r"`Task.classes`: \[0\]; expected distinct members of `classes\(split\)`: \d+, \d+, \d+, \d+, \d+, … \(\d+\)",
      class_numbers=lambda self, good, drawn: torch.arange(len(drawn)))
fault("EmptyDomainName", Blots, "tasks_carry_domain_name",
      "a task of the split 'train' has the domain ''; expected 'blots:one'",
      sample=changed_task(lambda task: {"domain": ""}))
fault("KeepsFirstName", Ramps, "tasks_carry_domain_name", "has the domain 'ramps'; expected 'another name'",
      sample=changed_task(lambda task: {"domain": "ramps"}))
fails("tasks_own_their_memory", "two tasks of the split 'train' share memory: writing to one changes the other")(
    ReturnsViews)
fault("CopiesEverySecondTask", ReturnsViews, "tasks_own_their_memory",
      "writing to a task of the split 'train' changes later draws from the domain", drawn=0,
      sample=every_second_copied)
fault("LimitedNumberOfTasks", Ramps, "inputs_fit", "RuntimeError: no more tasks", left=30, sample=at_most_30_tasks)

# -- randomness ------------------------------------------------------------------------------------------------------


def seeds_torch(self, good, split, random, **numbers):
    torch.manual_seed(0)
    return good(split, random, **numbers)


def cycles_through_images(self, good, random, count):  # so that all are drawn equally often
    self.drawn += count
    return np.arange(self.drawn, self.drawn + count) % INSTANCES


def restarted(self, good, split, random, **numbers):  # from the seed of the generator, in any state
    return good(split, np.random.Generator(np.random.PCG64(random.bit_generator.seed_seq)), **numbers)


class RegeneratesImages(Blots):
    """Keeps its pickle small and loses an option."""

    def __getstate__(self):
        return {**vars(self), "pictures": None}

    def __setstate__(self, state):
        vars(self).update(state)
        self.pictures = self.render(1, 0.2)


fault("SeedsTorch", Ramps, "global_generators_unchanged", "the domain uses the global generator of torch",
      sample=seeds_torch)
fault("AddsGlobalNoise", Ramps, "determined_by_generator",
      "the task of seed 0 and split 'train' differs between two domains with the same options",
      sample=changed_task(lambda task: {"query_y": task.query_y + torch.randn_like(task.query_y)}))
fault("CyclesThroughImages", Blots, "determined_by_generator", "differs after other tasks were drawn", drawn=0,
      instances=cycles_through_images)
fault("FixedSeed", Blots, "seeds_differ", "10 different seeds give the same task of the split 'train'",
      sample=lambda self, good, split, random, **numbers: good(split, np.random.default_rng(0), **numbers))
fault("RestartsGenerator", Ramps, "seeds_differ", "10 consecutive draws give the same task of the split 'train'",
      sample=restarted)
fails("pickle_draws_same_tasks",
      "the task of seed 0 and split 'train' differs for a copy that was pickled before any draw")(RegeneratesImages)

# -- splits, limits and variants -------------------------------------------------------------------------------------


class IgnoresSplit(Blots):
    """Uses all classes for every split."""

    def classes(self, split):
        return super().classes("all" if split in ("train", "val", "test") else split)


def without_names(self, good, split, **numbers):
    try:
        good(split, **numbers)
    except DataError as error:
        raise DataError("too many" if "requested" in str(error) else str(error)) from None


class DrawsFewerWays(Blots):
    """Silently draws fewer ways than requested."""

    def check(self, split, *, ways, shots, queries):
        super().check(split, ways=min(ways, 20) if ways < 1000 else ways, shots=shots, queries=queries)

    def sample(self, split, random, *, ways, shots, queries):
        ways = min(ways, len(self.classes(split)))
        return super().sample(split, random, ways=ways, shots=shots, queries=queries)


ONLY = "48 ways .* 'all', fewer .* \\({} for 'train', {} for 'val', {} for 'test'\\)"
fails("splits_share_no_input", r"\d+ inputs are in both splits, 'train' and 'val'")(IgnoresSplit)
fails("splits_share_no_class", ONLY.format(48, 48, 48))(IgnoresSplit)
fault("IgnoresSplitInRegression", Ramps, "splits_share_no_input",
      "the splits 'train' and 'val' give the same tasks for every seed",
      slopes=lambda self, good, split, random: good("all", random))
fault("OverlappingSplits", Blots, "splits_share_no_class", ONLY.format(24, 12, 24),
      classes=lambda self, good, split: list(range(20, 44)) if split == "test" else good(split))
fault("AcceptsAnyRequest", Blots, "excessive_requests_rejected", "`check` accepts 1000000 ways for the split 'train'",
      check=lambda self, good, split, **numbers: self.classes(split) and None)
fault("ErrorWithoutNames", Blots, "excessive_requests_rejected",
      r"`check` rejects .* without naming \['blots:one', 'train'\]: too many", check=without_names)
# Support images are drawn from the same images.
fault("IgnoresShots", Blots, "accepted_requests_succeed",
      "`check` accepts .*'shots': 8.*; `sample` raises ValueError: Cannot take a larger",
      check=lambda self, good, split, *, ways, shots, queries: good(
          split, ways=ways, shots=0, queries=max(shots, queries)))
fails("accepted_requests_succeed", r"`support_x` has the shape \(24, 1, 28, 28\); expected \(40, 1, 28, 28\)")(
    DrawsFewerWays)
fault("ListsUnknownVariant", Blots, "listed_variants_work", "the listed variant 'three' is rejected",
      {"variants": ("one", "two", "three")})
fault("SameNameForAllVariants", Blots, "listed_variants_work",
      "the variants 'one' and 'two' have the same name 'blots'", __init__=after_making(name="blots"))
fault("AcceptsAnyVariant", Blots, "unknown_variant_rejected", "the domain accepts the variant 'no_such_variant'",
      __init__=lambda self, good, variant, **options: good(variant if variant == "two" else "one", **options))
fault("EmptyAllSplit", Blots, "all_split_is_complete",
      "the split 'all' rejects .*, which the split 'train' supports",
      classes=lambda self, good, split: [number for number in good(split) if split == OWNERS[number % 4]])
fault("AcceptsAnySplit", Blots, "unknown_split_rejected", "`check` accepts the split 'tset'",
      classes=lambda self, good, split: good(split if split in ("train", "val", "all") else "test"))
# `sample` relies on a previous call of `check`.
fault("SamplesAnySplit", Ramps, "unknown_split_rejected", "`sample` accepts the split 'tset'",
      sample=lambda self, good, split, random, **numbers: good(
          "test" if split == "tset" else split, random, **numbers))
