"""Domains with faulty tasks: dtypes, shapes, numbers of inputs, randomness, memory, splits."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import torch

from tests.testing.domains.good import INSTANCES, Blots, Ramps
from tests.testing.faults import fails


@fails("inputs_fit", r"`support_x`: torch.float64 \(1, 1, 28, 28\); expected torch.float32")
class InFloat64(Blots):
    """Inputs in NumPy's default dtype."""

    def images(self, drawn, rows):
        return super().images(drawn, rows).double()


@fails("inputs_fit", r"`support_x`: pixels from 0 to 2\d\d\.?\d*; expected \[-1, 1\]")
class UnscaledPixels(Blots):
    """Pixels in [0, 255]."""

    def images(self, drawn, rows):
        return (super().images(drawn, rows) + 1) * 127.5


@fails("inputs_fit", "`query_x` is not finite")
class DividesByRange(Ramps):
    """Divides inputs by their range, which is 0 for a single point."""

    def sample(self, split, random, **numbers):
        task = super().sample(split, random, **numbers)
        span = task.query_x.max() - task.query_x.min()
        return dataclasses.replace(task, query_x=task.query_x / span)


@fails("inputs_fit", "`sample` returns a tuple; expected a gradhomog.Task")
class ReturnsTuple(Blots):
    """A tuple instead of a `Task`, as in other libraries."""

    def sample(self, split, random, **numbers):
        task = super().sample(split, random, **numbers)
        return task.support_x, task.support_y, task.query_x, task.query_y


@fails("targets_fit", r"`\w+_y`: labels \[.*, 0\]; expected [2-5] of each of 0..[1-5]")
class Unbalanced(Blots):
    """One more label of the first class and one fewer of the last."""

    def labels(self, ways, count):
        labels = super().labels(ways, count)
        if count > 1:
            labels[-1] = 0
        return labels


@fails("targets_fit", r"`support_y`: torch.float32 \(1,\); expected torch.float32 \(1, 2\)")
class OneTargetOfTwo(Ramps):
    """One target per point, although `outputs` is 2."""

    def sample(self, split, random, **numbers):
        task = super().sample(split, random, **numbers)
        return dataclasses.replace(task, support_y=task.support_y[:, 0], query_y=task.query_y[:, 0])


@fails("support_and_query_disjoint", "inputs are in both the support set and the query set")
class DrawsWithReplacement(Blots):
    """Draws images with replacement."""

    def instances(self, random, count):
        return random.choice(INSTANCES, size=count)


@fails("classes_consistent", r"`classes\(split\)` is given, but `Task.classes` is not")
class ClassesOfSplitOnly(Blots):
    """Lists the classes of a split, but not those of a task."""

    def class_numbers(self, drawn):
        return None


@fails("classes_consistent", r"`Task.classes` is given, but `classes\(split\)` is not")
class ClassesOfTaskOnly(Ramps):
    """Lists the classes of a task, but not those of a split."""

    def sample(self, split, random, **numbers):
        return dataclasses.replace(super().sample(split, random, **numbers), classes=torch.zeros(1).long())


@fails(
    "classes_consistent",
    r"`Task.classes`: \[0\]; expected distinct members of `classes\(split\)`: \d+, \d+, \d+, \d+, \d+, … \(\d+\)",
)
class LabelsAsClasses(Blots):
    """The task's labels, counted from zero."""

    def class_numbers(self, drawn):
        return torch.arange(len(drawn))


@fails("tasks_carry_domain_name", "a task of the split 'train' has the domain ''; expected 'blots:one'")
class EmptyDomainName(Blots):
    """Tasks with an empty domain name."""

    def sample(self, split, random, **numbers):
        return dataclasses.replace(super().sample(split, random, **numbers), domain="")


@fails("tasks_carry_domain_name", "has the domain 'ramps'; expected 'another name'")
class KeepsFirstName(Ramps):
    """Ignores a new name."""

    def sample(self, split, random, **numbers):
        return dataclasses.replace(super().sample(split, random, **numbers), domain="ramps")


@fails("tasks_own_their_memory", "two tasks of the split 'train' share memory: writing to one changes the other")
class ReturnsViews(Blots):
    """Returns views of the stored images instead of copies."""

    def sample(self, split, random, *, ways, shots, queries):
        task = super().sample(split, random, ways=ways, shots=shots, queries=queries)
        own = torch.from_numpy(self.pictures).reshape(-1, *self.input_shape)
        return dataclasses.replace(task, query_x=own[: len(task.query_x)])


@fails("tasks_own_their_memory", "writing to a task of the split 'train' changes later draws from the domain")
class CopiesEverySecondTask(ReturnsViews):
    """Alternately returns a copy and a view."""

    drawn = 0

    def sample(self, split, random, **numbers):
        self.drawn += 1
        task = super().sample(split, random, **numbers)
        return copy.deepcopy(task) if self.drawn % 2 else task


@fails("global_generators_unchanged", "the domain uses the global generator of torch")
class SeedsTorch(Ramps):
    """Seeds the global generator for reproducibility."""

    def sample(self, split, random, **numbers):
        torch.manual_seed(0)
        return super().sample(split, random, **numbers)


@fails(
    "determined_by_generator", "the task of seed 0 and split 'train' differs between two domains with the same options"
)
class AddsGlobalNoise(Ramps):
    """Adds noise from the global generator."""

    def sample(self, split, random, **numbers):
        task = super().sample(split, random, **numbers)
        return dataclasses.replace(task, query_y=task.query_y + torch.randn_like(task.query_y))


@fails("determined_by_generator", "differs after other tasks were drawn")
class CyclesThroughImages(Blots):
    """Cycles through the images of a class, so that all are drawn equally often."""

    drawn = 0

    def instances(self, random, count):
        self.drawn += count
        return np.arange(self.drawn, self.drawn + count) % INSTANCES


@fails("seeds_differ", "10 different seeds give the same task of the split 'train'")
class FixedSeed(Blots):
    """A new generator with the same seed for every task."""

    def sample(self, split, random, **numbers):
        return super().sample(split, np.random.default_rng(0), **numbers)


@fails("seeds_differ", "10 consecutive draws give the same task of the split 'train'")
class RestartsGenerator(Ramps):
    """Starts again from the seed of the generator and ignores its state."""

    def sample(self, split, random, **numbers):
        again = np.random.Generator(np.random.PCG64(random.bit_generator.seed_seq))
        return super().sample(split, again, **numbers)


@fails(
    "pickle_draws_same_tasks",
    "the task of seed 0 and split 'train' differs for a copy that was pickled before any draw",
)
class RegeneratesImages(Blots):
    """Keeps its pickle small and loses an option."""

    def __getstate__(self):
        return {**vars(self), "pictures": None}

    def __setstate__(self, state):
        vars(self).update(state)
        self.pictures = self.render(1, 0.2)


@fails("splits_differ", "the splits 'train' and 'val' give the same tasks for every seed")
@fails("splits_share_no_input", r"\d+ inputs are in both splits, 'train' and 'val'")
@fails("splits_share_no_class", "48 ways .* 'all', fewer .* \\(48 for 'train', 48 for 'val', 48 for 'test'\\)")
class IgnoresSplit(Blots):
    """Uses all classes for every split."""

    def classes(self, split):
        return super().classes("all" if split in ("train", "val", "test") else split)


@fails("splits_differ", "the splits 'train' and 'val' give the same tasks for every seed")
class IgnoresSplitInRegression(Ramps):
    """Uses all functions for every split."""

    def slopes(self, split, random):
        return super().slopes("all", random)


@fails("cost", "RuntimeError: no more tasks")
class LimitedNumberOfTasks(Ramps):
    """Raises after 30 tasks."""

    left = 30

    def sample(self, split, random, **numbers):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no more tasks")
        return super().sample(split, random, **numbers)
