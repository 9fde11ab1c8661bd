"""Faulty tasks: of other types and numbers, drawn by other chances, from other splits."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import torch

from tests.testing.domains.faults import fails
from tests.testing.domains.good import INSTANCES, Blots, Ramps


@fails("inputs_fit", r"`support_x`: torch.float64 \(1, 1, 28, 28\); expected torch.float32")
class InFloat64(Blots):
    """As NumPy computes."""

    def images(self, drawn, rows):
        return super().images(drawn, rows).double()


@fails("inputs_fit", r"`support_x`: pixels from 0 to 2\d\d\.?\d*; expected \[-1, 1\]")
class Bytes(Blots):
    """Pixels as a file has them."""

    def images(self, drawn, rows):
        return (super().images(drawn, rows) + 1) * 127.5


@fails("inputs_fit", r"`query_x`: torch.float32 \(1, 1, 28, 28\); expected torch.float32 \(2, 1, 28, 28\)")
class OneShort(Blots):
    """All but the last image, where there is more than one."""

    def images(self, drawn, rows):
        return super().images(drawn, rows[:, : max(1, rows.shape[1] - 1)])


@fails("inputs_fit", "`query_x` is not finite")
class DividesByRange(Ramps):
    """Scales inputs by their range, which one point does not have."""

    def sample(self, split, random, **numbers):
        task = super().sample(split, random, **numbers)
        span = task.query_x.max() - task.query_x.min()
        return dataclasses.replace(task, query_x=task.query_x / span)


@fails("inputs_fit", "`sample` returns a tuple; expected a gradhomog.Task")
class ReturnsTuple(Blots):
    """What other libraries return."""

    def sample(self, split, random, **numbers):
        task = super().sample(split, random, **numbers)
        return task.support_x, task.support_y, task.query_x, task.query_y


@fails("targets_fit", r"`support_y`: torch.int32 \(1,\); expected torch.int64 \(1,\)")
class SmallIntegers(Blots):
    """Labels that cross entropy refuses."""

    def labels(self, ways, count):
        return super().labels(ways, count).int()


@fails("targets_fit", r"`support_y`: labels \[1\]; expected 1 of each of 0..0")
class CountsFromOne(Blots):
    """The first class is 1."""

    def labels(self, ways, count):
        return super().labels(ways, count) + 1


@fails("targets_fit", r"`\w+_y`: labels \[.*, 0\]; expected [2-5] of each of 0..[1-5]")
class Unbalanced(Blots):
    """One image more of the first class than of the last."""

    def labels(self, ways, count):
        labels = super().labels(ways, count)
        if count > 1:
            labels[-1] = 0
        return labels


@fails("targets_fit", r"`support_y`: torch.float32 \(1,\); expected torch.float32 \(1, 2\)")
class OneNumberOfTwo(Ramps):
    """Says that it has two targets."""

    def sample(self, split, random, **numbers):
        task = super().sample(split, random, **numbers)
        return dataclasses.replace(task, support_y=task.support_y[:, 0], query_y=task.query_y[:, 0])


@fails("support_and_query_apart", "of the support inputs are among the queries")
class DrawsTwice(Blots):
    """Puts an image back before it draws the next."""

    def instances(self, random, count):
        return random.choice(INSTANCES, size=count)


@fails("classes_consistent", r"`classes\(split\)` give classes, tasks do not")
class TellsInGeneral(Blots):
    """Numbers for a split, none for a task."""

    def told(self, drawn):
        return None


@fails("classes_consistent", r"tasks give classes, `classes\(split\)` do not")
class TellsInParticular(Ramps):
    """Numbers for a task, none for a split."""

    def sample(self, split, random, **numbers):
        return dataclasses.replace(super().sample(split, random, **numbers), classes=torch.zeros(1).long())


@fails(
    "classes_consistent",
    r"`classes`: \[0\]; expected different ones of `classes\(split\)`, \d+, \d+, \d+, \d+, \d+, … \(\d+\)",
)
class TellsLabels(Blots):
    """The task's own labels, counted from zero."""

    def told(self, drawn):
        return torch.arange(len(drawn))


@fails("tasks_named", "a task of the split 'train' has the domain '', not 'blots:one'")
class Nameless(Blots):
    """A task of no domain."""

    def sample(self, split, random, **numbers):
        return dataclasses.replace(super().sample(split, random, **numbers), domain="")


@fails("tasks_named", "has the domain 'ramps', not 'another name'")
class KeepsFirstName(Ramps):
    """Is called otherwise, and goes on as before."""

    def sample(self, split, random, **numbers):
        return dataclasses.replace(super().sample(split, random, **numbers), domain="ramps")


@fails("tasks_own_their_memory", "two tasks of the split 'train' share memory: writing into one changes the other")
class HandsOutItsOwn(Blots):
    """The images of one class as they lie, without a copy."""

    def sample(self, split, random, *, ways, shots, queries):
        task = super().sample(split, random, ways=ways, shots=shots, queries=queries)
        own = torch.from_numpy(self.pictures).reshape(-1, *self.input_shape)
        return dataclasses.replace(task, query_x=own[: len(task.query_x)])


@fails("tasks_own_their_memory", "writing into a task of the split 'train' changes later draws from the domain")
class CopiesEverySecond(HandsOutItsOwn):
    """Hands out a copy and its own in turn."""

    drawn = 0

    def sample(self, split, random, **numbers):
        self.drawn += 1
        task = super().sample(split, random, **numbers)
        return copy.deepcopy(task) if self.drawn % 2 else task


@fails("tasks_own_their_memory", "share memory: writing into one changes the other")
class OneBufferForAll(Blots):
    """Always the same tensor for labels, which never change."""

    kept: dict[tuple[int, int], torch.Tensor] = {}  # noqa: RUF012

    def labels(self, ways, count):
        return self.kept.setdefault((ways, count), super().labels(ways, count))


@fails("global_generators_unchanged", "it uses the global generator of numpy")
class DrawsFromNumPy(Blots):
    """Ignores that it was given a generator."""

    def instances(self, random, count):
        return np.random.permutation(INSTANCES)[:count]


@fails("global_generators_unchanged", "it uses the global generator of torch")
class SeedsTorch(Ramps):
    """Makes itself reproducible at the cost of everything else that is drawn."""

    def sample(self, split, random, **numbers):
        torch.manual_seed(0)
        return super().sample(split, random, **numbers)


@fails("generator_decides", "the task of seed 0 and split 'train' differs of two made alike, with other global")
class AddsNoise(Ramps):
    """Noise of its own, from the generator that everybody shares."""

    def sample(self, split, random, **numbers):
        task = super().sample(split, random, **numbers)
        return dataclasses.replace(task, query_y=task.query_y + torch.randn_like(task.query_y))


@fails("generator_decides", "differs after others were drawn")
class TakesTurns(Blots):
    """Goes through the images of a class in turn, so that all are seen equally often."""

    drawn = 0

    def instances(self, random, count):
        self.drawn += count
        return np.arange(self.drawn, self.drawn + count) % INSTANCES


@fails("seeds_differ", "10 different seeds give the same task of the split 'train'")
class OwnGenerator(Blots):
    """A generator of its own for every task, always with the same seed."""

    def sample(self, split, random, **numbers):
        return super().sample(split, np.random.default_rng(0), **numbers)


@fails("seeds_differ", "10 consecutive draws give the same task of the split 'train'")
class ReadsSeed(Ramps):
    """Takes the seed that the generator was made with, wherever it is by now."""

    def sample(self, split, random, **numbers):
        again = np.random.Generator(np.random.PCG64(random.bit_generator.seed_seq))
        return super().sample(split, again, **numbers)


@fails("pickled", "[Cc]an't (get|pickle) local object")
class HoldsFunction(Blots):
    """A function made in the constructor cannot go to another process."""

    def __init__(self, variant, **options):
        super().__init__(variant, **options)
        self.labels = lambda ways, count: torch.arange(ways).repeat_interleave(count)


@fails("pickled", "the task of seed 0 and split 'train' differs of a copy, pickled as it was made")
class PaintsAgain(Blots):
    """Keeps its pickle small, and forgets an option on the way."""

    def __getstate__(self):
        return {**vars(self), "pictures": None}

    def __setstate__(self, state):
        vars(self).update(state)
        self.pictures = self.paint(1, 0.2)


@fails("splits_differ", "the splits 'train' and 'val' give the same tasks, seed for seed")
@fails("splits_share_no_input", r"\d+ inputs are in the split 'train' and in the split 'val'")
@fails("splits_share_no_class", "up to 48 of train, 48 of val, 48 of test classes, and of all only 48")
class IgnoresSplit(Blots):
    """All classes, whatever is asked for."""

    def classes(self, split):
        return super().classes("all" if split in ("train", "val", "test") else split)


@fails("splits_differ", "the splits 'train' and 'val' give the same tasks, seed for seed")
class OneFamilyForAll(Ramps):
    """The same in regression."""

    def slopes(self, split, random):
        return super().slopes("all", random)


@fails("splits_share_no_input", r"\d+ inputs are in the split 'train' and in the split 'test'")
class OneClassTwice(Blots):
    """Boundaries that overlap by one."""

    def classes(self, split):
        return {
            "train": list(range(25)),
            "val": list(range(25, 37)),
            "test": list(range(24, 25)) + list(range(37, 48)),
        }.get(split, super().classes("all"))


@fails("cost", "RuntimeError: no more tasks")
class RunsDry(Ramps):
    """A list of tasks that ends."""

    left = 30

    def sample(self, split, random, **numbers):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no more tasks")
        return super().sample(split, random, **numbers)
