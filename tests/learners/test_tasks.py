"""Stacking tasks to batches, and reading tasks from batches, including their classes."""

import pytest
import torch

from gradhomog import DataError, Task, TaskBatch


def make_task(slot, classes=True):
    x = torch.arange(6.0).reshape(3, 2) + 10 * slot
    y = torch.tensor([0, 1, 0])
    return Task(x, y, x + 1, y, f"domain {slot}", torch.tensor([slot, slot + 5]) if classes else None)


def same(one, two):
    for name, value in vars(one).items():
        other = getattr(two, name)
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


def test_the_entries_of_a_batch_are_the_stacked_tasks():
    tasks = [make_task(slot) for slot in range(3)]
    batch = TaskBatch.stack(tasks)
    assert batch.classes.tolist() == [[0, 5], [1, 6], [2, 7]]
    for one, two in zip(batch, tasks, strict=True):
        same(one, two)
    for one, two in zip(batch.to("cpu"), tasks, strict=True):
        same(one, two.to("cpu"))


def test_a_batch_has_classes_only_if_all_its_tasks_have():
    batch = TaskBatch.stack([make_task(0), make_task(1, classes=False)])
    assert batch.classes is None
    assert batch[0].classes is None
    assert batch.to("cpu").classes is None
    assert make_task(1, classes=False).to("cpu").classes is None


def test_classes_must_have_the_same_shape_in_all_tasks():
    batch = TaskBatch.stack([make_task(0), make_task(1)])
    with pytest.raises(DataError, match="first dimension of `classes` must be 2"):
        TaskBatch(batch.support_x, batch.support_y, batch.query_x, batch.query_y, classes=torch.zeros(3, 2).long())
    three = make_task(1)
    three = Task(three.support_x, three.support_y, three.query_x, three.query_y, "three", torch.tensor([1, 2, 3]))
    with pytest.raises(DataError, match=r"`classes` must have the same shape in all tasks.*three \(3,\)"):
        TaskBatch.stack([make_task(0), three])
