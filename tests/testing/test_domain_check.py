"""`check_domain`: the built-in domains pass, and each faulty domain fails with its reason."""

import dataclasses

import numpy as np
import pytest
import torch

import gradhomog
from gradhomog import DataError, available
from gradhomog.testing import CheckFailure, check_domain
from gradhomog_data.domains import ClassImages
from gradhomog_data.domains.functions import Functions

BUILT_IN = (
    "glyphs:greek", "glyphs:arrows(instances=6, background=0.3)", "functions:sinusoid", "functions:step",
    "functions:bumps(noise=0.1)",
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A temporary cache folder, so that no test reads or writes the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("text", [pytest.param(BUILT_IN[0], marks=pytest.mark.slow), *BUILT_IN[1:]])
def test_built_in_domains_pass(text):
    check_domain(gradhomog.domain(text))


def test_every_built_in_domain_is_tested():
    assert {text.partition(":")[0] for text in BUILT_IN} | {"images"} == set(available("domains"))


def test_image_files_pass(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (16 * 6, 24, 30, 3), dtype=np.uint8)
    names = np.array([f"class {number:02}" for number in range(16)])
    np.savez(tmp_path / "birds.npz", images=pictures, labels=np.repeat(range(16), 6), class_names=names)
    check_domain(gradhomog.domain(str(tmp_path / "birds.npz"), size=28))


class Pictures(ClassImages):
    """A correct domain; each faulty one differs from it by a single error."""

    def __init__(self, splits=("train", "val", "test", "train") * 6, repeated=1):
        pictures = np.random.default_rng(0).integers(0, 256, (24 * 8 // repeated, 6, 6, 1), dtype=np.uint8)
        names = [str(number) for number in range(24)]
        pictures = np.repeat(pictures, repeated, axis=0)
        super().__init__("pictures", pictures, np.repeat(np.arange(24), 8), names, class_split=splits)


class ChangedTask(Pictures):
    change = staticmethod(lambda task: {})

    def sample(self, *arguments, **numbers):
        task = super().sample(*arguments, **numbers)
        return dataclasses.replace(task, **self.change(task))


def changed(**functions):
    """A domain whose tasks have other values, functions of the task."""
    change = staticmethod(lambda task: {name: function(task) for name, function in functions.items()})
    return type("Changed", (ChangedTask,), {"change": change})()


class SeedsTorch(Pictures):
    def sample(self, *arguments, **numbers):
        torch.manual_seed(0)
        return super().sample(*arguments, **numbers)


class IgnoresSeed(Pictures):
    def sample(self, split, random, **numbers):
        return super().sample(split, np.random.default_rng(0), **numbers)


class LosesPixels(Pictures):
    def __setstate__(self, state):
        vars(self).update(state, _images=255 - state["_images"])


class SharesMemory(Pictures):
    def __init__(self):
        super().__init__()
        self.tasks = {}

    def sample(self, split, random, **numbers):
        key = split, random.bit_generator.seed_seq.entropy
        if key not in self.tasks:
            self.tasks[key] = super().sample(split, random, **numbers)
        return self.tasks[key]


class UsesAllClasses(Pictures):
    def sample(self, split, random, **numbers):
        self.class_split, own = (split,) * 24 if split != "all" else self.class_split, self.class_split
        try:
            return super().sample(split, random, **numbers)
        finally:
            self.class_split = own

    def classes(self, split):
        return super().classes("all" if split in ("train", "val", "test") else split)


class AcceptsAnySplit(Pictures):
    def classes(self, split):
        return super().classes(split if split in ("train", "val") else "all" if split == "all" else "test")


class AcceptsAnyWays(Pictures):
    def check(self, split, *, ways, shots, queries):
        super().check(split, ways=min(ways, 2), shots=shots, queries=queries)


class OneFunction(Functions):
    def __init__(self):
        super().__init__("line", noise=0)

    def parameters(self, split, random):
        return super().parameters("all", random)


FAULTS = {
    "pixels": (lambda: changed(query_x=lambda task: task.query_x * 3), "`query_x`: pixels from .*; expected"),
    "nan": (lambda: changed(support_x=lambda task: task.support_x / 0), "`support_x` is not finite"),
    "labels": (lambda: changed(query_y=lambda task: 0 * task.query_y), r"`query_y`: labels \[0, 0, 0, 0\]; expected 2"),
    "no query": (lambda: changed(query_x=lambda task: task.query_x[:1]), r"`query_x` has the shape \(1, 1, 6, 6\)"),
    "name": (lambda: changed(domain=lambda task: ""), "a task has the domain ''; expected 'pictures'"),
    "classes": (lambda: changed(classes=lambda task: None), r"`Task.classes` are \[\]; expected 2 distinct members"),
    "copies": (lambda: Pictures(repeated=8), "inputs are in both the support set and the query set"),
    "global seed": (SeedsTorch, "`sample` changes the global generator of torch"),
    "fixed seed": (IgnoresSeed, "20 different seeds give the same task of the split 'train'"),
    "pickle": (LosesPixels, "tasks of equal seeds of the split 'train' differ in a pickled copy"),
    "memory": (SharesMemory, "tasks of equal seeds of the split 'train' differ after tasks were drawn and overwritten"),
    "splits": (UsesAllClasses, r"\d+ inputs are in both splits, 'train' and 'val'"),
    "functions": (OneFunction, "the splits 'train' and 'val' give the same tasks for every seed"),
    "unknown split": (AcceptsAnySplit, "`check` accepts the split 'tset': raise a DataError"),
    "ways": (AcceptsAnyWays, "`check` accepts 1000000 ways: raise a DataError"),
}


@pytest.mark.parametrize(("make", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_fails_with_its_reason(make, message):
    with pytest.raises(CheckFailure, match=message):
        check_domain(make())


def test_the_correct_domain_passes_and_one_without_enough_images_raises():
    check_domain(Pictures())
    check_domain(ChangedTask())
    with pytest.raises(DataError, match="2-way tasks of 9 shots and 2 queries need 2 classes"):
        check_domain(Pictures(), shots=9)
