"""Batches of tasks; `TaskDataset`: tasks are functions of seed and index, disjoint, balanced, and loaded lazily."""

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from gradhomog import DataError, OptionError, Task, TaskBatch, TaskDataset
from gradhomog_adapters.baseline import Baseline
from gradhomog_data.domains.class_images import ClassImages

SHAPE = {"ways": 3, "shots": 2, "queries": 4, "length": 20}


class Numbers(Dataset[Any]):
    """Example i is the number i, of class i mod `classes`. Records the loaded examples."""

    def __init__(self, examples: int = 60, classes: int = 6) -> None:
        self.targets = [index % classes for index in range(examples)]
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.loaded.append(index)
        return torch.tensor([float(index)]), self.targets[index]


class Noisy(Numbers):
    """Examples with a random transform: noise from PyTorch's generator."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        value, label = super().__getitem__(index)
        return value + torch.rand(1), label


def same(one: Task, two: Task) -> bool:
    return all(
        torch.equal(value, vars(two)[name]) if isinstance(value, torch.Tensor) else value == vars(two)[name]
        for name, value in vars(one).items()
    )


@pytest.mark.parametrize("dataset", [Numbers(), Noisy()], ids=["plain", "random transform"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_task_depends_on_seed_and_index_only(dataset: Numbers, workers: int) -> None:
    tasks = TaskDataset(dataset, **SHAPE, seed=5, domain="numbers")
    torch.manual_seed(workers)
    loader = DataLoader(tasks, batch_size=None, num_workers=workers)
    loaded = list(loader)
    assert len(loaded) == SHAPE["length"]
    assert all(same(task, tasks[index]) for index, task in enumerate(loaded))
    shuffled = DataLoader(tasks, batch_size=None, num_workers=workers, sampler=[7, 3])
    assert all(same(task, tasks[index]) for index, task in zip((7, 3), shuffled, strict=True))


def test_a_larger_length_does_not_change_the_first_tasks() -> None:
    short, long = (TaskDataset(Numbers(), **(SHAPE | {"length": length})) for length in (5, 10**12))
    assert same(short[4], long[4])
    assert len(long) == 10**12
    assert long[10**12 - 1].support_x.shape == (6, 1)


def test_drawing_does_not_change_the_generators_of_the_process() -> None:
    torch.manual_seed(0)
    before, state = torch.get_rng_state(), np.random.get_state()[1].copy()
    TaskDataset(Noisy(), **SHAPE)[0]
    assert torch.equal(before, torch.get_rng_state())
    assert (state == np.random.get_state()[1]).all()


@pytest.mark.parametrize("shape", [(3, 2, 4), (1, 1, 1), (6, 5, 5), (2, 9, 1)])
def test_support_and_query_are_disjoint_and_every_class_has_its_examples(shape: tuple[int, int, int]) -> None:
    ways, shots, queries = shape
    numbers = Numbers()
    for task in TaskDataset(numbers, ways=ways, shots=shots, queries=queries, length=30, classes=[5, 0, 1, 2, 3, 4]):
        drawn = torch.cat([task.support_x, task.query_x]).flatten().int().tolist()
        assert len(set(drawn)) == ways * (shots + queries)
        assert Counter(task.support_y.tolist()) == dict.fromkeys(range(ways), shots)
        assert Counter(task.query_y.tolist()) == dict.fromkeys(range(ways), queries)
        assert task.classes is not None
        of_classes = torch.tensor([5, 0, 1, 2, 3, 4])[task.classes]  # positions in `classes`
        for x, y in ((task.support_x, task.support_y), (task.query_x, task.query_y)):
            assert torch.equal(x.flatten().long() % 6, of_classes[y])


def test_classes_examples_and_labels_are_drawn_about_equally_often() -> None:
    """For 4,000 tasks every count is binomial; the tolerance is five standard deviations."""
    tasks = TaskDataset(Numbers(), ways=3, shots=1, queries=1, length=4000)
    classes: Counter[int] = Counter()
    positions: Counter[tuple[int, int]] = Counter()
    supports: Counter[int] = Counter()
    for task in tasks:
        assert task.classes is not None
        classes.update(task.classes.tolist())
        positions.update(enumerate(task.classes.tolist()))
        supports.update(task.support_x.flatten().int().tolist())
    for counts, kinds, chance in ((classes, 6, 1 / 2), (positions, 18, 1 / 6), (supports, 60, 1 / 20)):
        assert len(counts) == kinds
        spread = 5 * (4000 * chance * (1 - chance)) ** 0.5
        assert all(abs(count - 4000 * chance) < spread for count in counts.values())


def test_only_the_examples_of_a_task_are_loaded() -> None:
    numbers = Numbers(6000)
    tasks = TaskDataset(numbers, **SHAPE)
    assert numbers.loaded == []
    task = tasks[3]
    assert len(numbers.loaded) == 3 * (2 + 4)
    assert sorted(numbers.loaded) == sorted(torch.cat([task.support_x, task.query_x]).flatten().int().tolist())


def test_only_the_given_classes_are_drawn() -> None:
    tasks = TaskDataset(Numbers(), **SHAPE, classes=range(3, 6))
    assert tasks.classes == (3, 4, 5)
    assert tasks.class_count == 3
    assert {int(x) % 6 for task in tasks for x in task.query_x} == {3, 4, 5}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_collates_tasks_to_batches_and_pins_them(workers: int) -> None:
    tasks = TaskDataset(Numbers(), **SHAPE, domain="numbers")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pin_memory.*", UserWarning)  # on machines without an accelerator
        batches = list(DataLoader(tasks, 4, num_workers=workers, pin_memory=True, collate_fn=TaskBatch.stack))
    assert len(batches) == 5
    assert batches[2].support_x.shape == (4, 6, 1)
    assert batches[2].domains == ("numbers",) * 4
    assert batches[2].classes.shape == (4, 3)
    assert all(same(task, tasks[8 + slot]) for slot, task in enumerate(batches[2]))
    assert not torch.cuda.is_available() or batches[0].query_x.is_pinned()


def test_tasks_and_batches_pin_all_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.Tensor.pin_memory` is replaced, as it requires an accelerator; `DataLoader` calls `pin_memory()`."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.shape) or tensor.clone())
    task = TaskDataset(Numbers(), **SHAPE)[0]
    assert same(torch.utils.data._utils.pin_memory.pin_memory(task), task)
    assert len(pinned) == 5
    torch.utils.data._utils.pin_memory.pin_memory(TaskBatch.stack([task, task]))
    assert len(pinned) == 10


def test_a_learner_that_classifies_all_training_classes_receives_their_indices() -> None:
    tasks = TaskDataset(Numbers(), **SHAPE, classes=[5, 1, 3, 2])
    learner = Baseline(torch.nn.Linear(1, 4), torch.nn.Linear(4, 3), classes=tasks.class_count)
    rows = learner.rows(TaskBatch.stack([tasks[0], tasks[1]])).jacobian["learner.classifier.weight"]
    assert rows.shape == (2, 4, 4)


def labelled(**attributes: object) -> Dataset[Any]:
    numbers = Numbers(12, 2)
    del numbers.targets
    numbers.__class__ = type("Labelled", (Numbers,), {"__len__": lambda self: 12})
    for name, value in attributes.items():
        setattr(numbers, name, value)
    return numbers


LABELS = [0, 1] * 6


@pytest.mark.parametrize(
    "dataset",
    [
        labelled(targets=LABELS),
        labelled(labels=np.array(LABELS, dtype=np.uint8)),
        labelled(targets=LABELS, labels=["ignored"] * 12),
        TensorDataset(torch.arange(12.0)[:, None], torch.tensor(LABELS)),
        Subset(Subset(Numbers(100, 2), range(10, 100)), torch.arange(12).tolist()),
        ConcatDataset([Numbers(6, 2), Subset(Numbers(100, 2), range(6))]),
    ],
    ids=["list", "array", "targets first", "tensors", "subset twice", "concatenated"],
)  # fmt: skip
def test_labels_are_those_of_the_data_set(dataset: Dataset[Any]) -> None:
    given, found = (
        TaskDataset(dataset, ways=2, shots=1, queries=5, length=3, labels=labels) for labels in (LABELS, None)
    )
    assert found.classes == (0, 1)
    if not hasattr(dataset, "labels") and not hasattr(dataset, "targets"):
        assert all(same(one, two) for one, two in zip(given, found, strict=True))


def test_inputs_may_be_arrays_or_items_without_a_label() -> None:
    class Arrays(Numbers):
        def __getitem__(self, index: int) -> Any:
            return np.full((2, 2), index, dtype=np.float32)

    task = TaskDataset(Arrays(), **SHAPE)[0]
    assert task.support_x.shape == (6, 2, 2)
    assert task.support_x.dtype == torch.float32


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


class Shapes(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(index), 0


class Words(Numbers):
    def __getitem__(self, index: int) -> Any:
        return "picture", 0


@pytest.mark.parametrize(
    ("dataset", "changes", "message"),
    [
        (Numbers(), {"ways": 7}, "7-way tasks of 2 shots and 4 queries require 7 classes of at least 6 examples; got 6 "
            "classes of 10 to 10 examples, of which 6 qualify. Reduce `ways`, or pass more `classes`."),
        (Numbers(63), {"ways": 4, "shots": 7}, "require 4 classes of at least 11 examples; got 6 classes of 10 to 11 "
            "examples, of which 3 qualify. Reduce `shots` or `queries`."),
        (Numbers(), {"classes": [0, 1, 9]}, r"`classes` must be among the labels; got 9, which is not \(1 such "
            r"classes\). The labels are 0..5, 6 different ones."),
        (Numbers(), {"classes": [0, 1, 1]}, "`classes` must not repeat a label; got 3 labels, of which 2 differ."),
        (labelled(), {}, "Labelled has neither `targets` nor `labels`, .*Pass `labels=`, one integer per example"),
        (labelled(targets=["cat", "dog"] * 6), {}, "`Labelled.targets` must be integers; got dtype <U3; the first is "
            "str 'cat'. Number the classes"),
        (Numbers(), {"labels": [0.0] * 60}, "`labels` must be integers; got dtype float64; the first is float 0.0"),
        (Numbers(), {"labels": torch.zeros(60, 6).long()}, r"shape \[examples\]; got \(60, 6\). Convert one-hot"),
        (Numbers(), {"labels": [[0], [1, 2]]}, "`labels` must contain one integer per example; got a ragged list"),
        (Numbers(), {"labels": [0, 1]}, "one label for each of the 60 examples of Numbers; got 2."),
        (Numbers(), {"labels": [-1] * 10 + LABELS * 4 + [2, 3]}, "`labels` must be >= 0; got -1 for 10 examples."),
        (Subset(Numbers(), []), {"classes": [0, 1, 2]}, "`dataset` has no examples"),
        (Stream(), {}, "`dataset` must be a map-style dataset.*got Stream, an IterableDataset"),
        (Shapes(), {}, r"inputs of `dataset` must have the same shape; got .* for example \d+ .*Resize them"),
        (Words(), {}, "must be a tensor or an array, or a tuple that starts with one; got str. Convert it"),
    ],
)  # fmt: skip
def test_an_error_names_the_expected_and_the_actual_value(
    dataset: Dataset[Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        TaskDataset(dataset, **(SHAPE | changes))[0]


@pytest.mark.parametrize("shots", [1, 3, 4])
def test_small_classes_are_skipped_as_in_domains(shots: int) -> None:
    """One rule for both: a class with fewer than `shots + queries` examples is not drawn, and `ways` must remain."""
    counts = np.array([3, 9, 4, 7, 6, 2, 8])
    labels, shape = np.repeat(np.arange(7), counts), {"ways": 3, "shots": shots, "queries": 3}
    tasks = TaskDataset(Numbers(len(labels)), labels=labels, length=60, **shape)
    domain = ClassImages("small", np.zeros((len(labels), 1, 1, 1), np.uint8), labels, list("abcdefg"))
    drawn = [domain.sample("all", np.random.default_rng(seed), **shape) for seed in range(60)]
    for found in (list(tasks), drawn):
        assert {int(c) for task in found for c in task.classes} == set(np.flatnonzero(counts >= shots + 3))
    assert tasks.classes == tuple(range(7))  # the numbers of classes do not depend on the shots
    with pytest.raises(DataError, match="of which 2 qualify"):
        TaskDataset(Numbers(len(labels)), labels=labels, length=1, ways=3, shots=5, queries=3)
    with pytest.raises(DataError, match="of which 2 qualify"):
        domain.check("all", ways=3, shots=5, queries=3)


def inputs(tasks: Iterable[Task]) -> list[tuple[float, ...]]:
    return [tuple(torch.cat([task.support_x, task.query_x]).flatten().tolist()) for task in tasks]


def test_new_tasks_come_from_a_longer_data_set_or_from_another_seed() -> None:
    """The recipes of the guide: by default, every epoch repeats the tasks of the first one."""
    loader = DataLoader(TaskDataset(Numbers(), **SHAPE), batch_size=None)
    assert inputs(loader) == inputs(loader)
    longer = inputs(TaskDataset(Numbers(), **(SHAPE | {"length": 60})))
    epochs = [task for seed in range(3) for task in inputs(TaskDataset(Numbers(), **SHAPE, seed=seed))]
    assert len(set(longer)) == len(set(epochs)) == 60
    assert longer[:20] == epochs[:20] == inputs(loader)


def test_the_seed_and_the_index_have_ranges() -> None:
    with pytest.raises(OptionError, match=r"`seed` must be an integer ≥ 0 and < 4294967296; got -1"):
        TaskDataset(Numbers(), **SHAPE, seed=-1)
    for index in (-1, 20):
        with pytest.raises(IndexError, match=rf"`index` must be in 0..19, as `length` is 20; got {index}"):
            TaskDataset(Numbers(), **SHAPE)[index]


def test_unlabelled_examples_are_excluded_by_classes() -> None:
    tasks = TaskDataset(Numbers(), **SHAPE, labels=[-1] * 30 + [0, 1, 2] * 10, classes=[0, 1, 2])
    assert min(int(x) for task in tasks for x in task.query_x) >= 30


@pytest.mark.parametrize("classes", [[0.5, 1.7, 2.9], "012", 3, [True, False, True]])
def test_classes_that_are_not_integers_raise(classes: Any) -> None:
    with pytest.raises(DataError, match="`classes` must be a sequence of integers"):
        TaskDataset(Numbers(), **SHAPE, classes=classes)


@pytest.mark.slow_after_first
def test_numbers_of_numpy_are_integers_and_halves_are_not() -> None:
    tasks = TaskDataset(Numbers(), ways=np.int64(3), shots=2, queries=4, length=20)
    assert same(tasks[np.int64(1)], TaskDataset(Numbers(), **SHAPE)[1])
    with pytest.raises(TypeError):
        tasks[1.5]  # type: ignore[index]


def make_task(slot: int, classes: bool = True) -> Task:
    x = torch.arange(6.0).reshape(3, 2) + 10 * slot
    y = torch.tensor([0, 1, 0])
    return Task(x, y, x + 1, y, f"domain {slot}", torch.tensor([slot, slot + 5]) if classes else None)


def test_the_entries_of_a_batch_are_the_stacked_tasks() -> None:
    tasks = [make_task(slot) for slot in range(3)]
    batch = TaskBatch.stack(tasks)
    assert batch.classes is not None
    assert batch.classes.tolist() == [[0, 5], [1, 6], [2, 7]]
    for one, two in zip(batch, tasks, strict=True):
        assert same(one, two)
    for one, two in zip(batch.to("cpu"), tasks, strict=True):
        assert same(one, two.to("cpu"))


def test_a_batch_has_classes_only_if_all_its_tasks_have() -> None:
    batch = TaskBatch.stack([make_task(0), make_task(1, classes=False)])
    assert batch.classes is None
    assert batch[0].classes is None
    assert batch.to("cpu").classes is None
    assert make_task(1, classes=False).to("cpu").classes is None


def test_classes_must_have_the_same_shape_in_all_tasks() -> None:
    batch = TaskBatch.stack([make_task(0), make_task(1)])
    with pytest.raises(DataError, match="first dimension of `classes` must be 2"):
        TaskBatch(batch.support_x, batch.support_y, batch.query_x, batch.query_y, classes=torch.zeros(3, 2).long())
    three = make_task(1)
    three = Task(three.support_x, three.support_y, three.query_x, three.query_y, "three", torch.tensor([1, 2, 3]))
    with pytest.raises(DataError, match=r"`classes` must have the same shape in all tasks.*three \(3,\)"):
        TaskBatch.stack([make_task(0), three])
