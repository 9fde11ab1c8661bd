"""The Gramian of accumulated rows: exact for short rows, within the error of the sketch for long ones."""

import pytest
import torch

from gradhomog.diagnosis import labelled_gramian
from gradhomog.diagnosis.labelled_gramian import RowStore
from gradhomog.errors import DataError


def filled(rows, columns=labelled_gramian.COLUMNS, seed=0):
    store = RowStore(["a", "b"], columns, seed)
    for batch in rows:
        store.add(batch, ["a", "b"])
    return store.result()


def test_the_gramian_is_that_of_all_rows_by_parameter(monkeypatch):
    monkeypatch.setattr(labelled_gramian, "_CHUNK", 4)  # several chunks, the last of which is shorter
    rows = torch.randn(3, 2, 10, generator=torch.Generator().manual_seed(0))
    found = filled([{"weight": batch[:, :6].reshape(2, 2, 3), "bias": batch[:, 6:]} for batch in rows])
    flat = rows.reshape(6, 10).double()
    torch.testing.assert_close(found.gramian, flat @ flat.T)
    assert found.batches.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert found.names == ("a", "b")


def test_stored_rows_are_copies():
    rows = torch.ones(2, 3)
    store = RowStore(["a", "b"])
    store.add(rows, ["a", "b"])
    rows.zero_()
    assert (store.result().gramian == 3).all()


def test_a_sketch_is_unbiased_with_the_documented_variance():
    rows = torch.randn(1, 2, 300, generator=torch.Generator().manual_seed(1))
    exact = filled(rows).gramian
    columns = 16
    found = torch.stack([filled(rows, columns, seed).gramian for seed in range(800)])
    error = (found.mean(0) - exact) / (found.std(0) / len(found) ** 0.5)
    assert error.abs().max() < 4
    squares = exact.diagonal()
    bound = (squares[:, None] * squares + exact.square()) / columns
    assert (found.var(0) < 1.3 * bound).all()  # 800 samples: the variance has an error of about 5 %


def test_other_parameters_raise_an_error_that_names_one():
    numbers = RowStore(["a", "b"])
    numbers.add(torch.ones(2, 3), ["a", "b"])
    with pytest.raises(DataError, match=r"the rows must have the shape \(3,\) .* got \(4,\) in batch 1"):
        numbers.add(torch.ones(2, 4), ["a", "b"])
    store = RowStore(["a", "b"])
    store.add({"w": torch.ones(2, 3), "b": torch.ones(2, 1)}, ["a", "b"])
    with pytest.raises(DataError, match=r"`b` must have the shape \(1,\) as in the first batch; got absent in batch 1"):
        store.add({"w": torch.ones(2, 4)[:, :3]}, ["a", "b"])
    with pytest.raises(DataError, match=r"`w` must have the shape \(3,\)"):  # four numbers too
        store.add({"w": torch.ones(2, 1), "b": torch.ones(2, 3)}, ["a", "b"])
