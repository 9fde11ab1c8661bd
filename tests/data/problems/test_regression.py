"""Tables: CSV and NPZ files, standardization by the training rows, and errors with column and row."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gradhomog import DataError
from gradhomog_data.problems import regression
from tests.data.problems.conftest import problem_run

ROWS = 50


@pytest.fixture(scope="module")
def columns():
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 3)) * [1, 10, 0.01] + [0, 5, -3]
    return {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "sum": x.sum(1), "product": x[:, 0] * x[:, 1]}


@pytest.fixture
def csv(columns, tmp_path):
    path = tmp_path / "table.csv"
    lines = [", ".join(columns), *(",".join(map(repr, map(float, row))) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")  # as spreadsheets write it
    return str(path)


def load_data(path, **options):
    return regression.regression(problem_run(), data=str(path), **{"targets": ["sum", "product"], **options})


def test_csv_and_npz_of_the_same_columns_give_the_same_data(csv, columns, tmp_path):
    np.savez(tmp_path / "table.npz", **columns)
    one, two = load_data(csv), load_data(tmp_path / "table.npz")
    assert one.tasks == two.tasks == ("sum", "product")
    assert torch.equal(one.train.inputs, two.train.inputs)
    assert all(map(torch.equal, one.test.targets, two.test.targets))


def test_an_array_of_several_columns_is_several_tasks(columns, tmp_path):
    np.savez(tmp_path / "two.npz", x=np.stack([columns["a"], columns["b"]], 1), y=np.stack([columns["c"]] * 2, 1))
    result = load_data(tmp_path / "two.npz", targets=["y"])
    assert result.tasks == ("y[0]", "y[1]")
    assert result.train.inputs.shape[1] == 2


def test_two_tasks_with_one_title_raise_with_the_title(columns, tmp_path):
    pair = np.stack([columns["a"], columns["b"]], 1)
    np.savez(tmp_path / "alike.npz", **{"x": columns["c"], "y": pair, "y[0]": columns["sum"]})
    with pytest.raises(
        DataError, match=r"`problem.targets`: two columns of .* have the title 'y\[0\]': .* a column of the array 'y'"
    ):
        load_data(tmp_path / "alike.npz", targets=["y", "y[0]"])
    assert load_data(tmp_path / "alike.npz", targets=["y[0]"]).tasks == ("y[0]",)
    assert load_data(tmp_path / "alike.npz", targets=["x"]).train.inputs.shape[1] == 3  # titles of inputs may be equal


def test_each_row_is_in_one_part_with_its_inputs_and_targets(csv, columns):
    result = load_data(csv, inputs=["a"], targets=["b"])
    splits = (result.train, result.validation, result.test)
    assert [len(split.inputs) for split in splits] == [30, 10, 10]
    pairs = torch.cat([torch.cat([split.inputs, split.targets[0]], dim=1) for split in splits]).double().numpy()
    # Standardization keeps the order within a column, so that sorted rows can be compared.
    order, expected = np.argsort(pairs[:, 0]), np.argsort(columns["a"])
    assert np.corrcoef(pairs[order, 1], columns["b"][expected])[0, 1] == pytest.approx(1, abs=1e-6)
    assert np.corrcoef(pairs[order, 0], columns["a"][expected])[0, 1] == pytest.approx(1, abs=1e-6)


def test_training_rows_have_mean_zero_and_deviation_one_and_others_have_the_same_scale(csv):
    result = load_data(csv)
    for values in (result.train.inputs, *result.train.targets):
        assert values.double().mean(0).abs().max() < 1e-6
        assert (values.double().std(0, correction=0) - 1).abs().max() < 1e-6
    assert result.test.inputs.double().mean(0).abs().max() > 1e-3


def test_the_seed_determines_the_parts(csv):
    one, same, other = (load_data(csv, seed=seed).train.inputs for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,a\n1,2\n", {}, "expected a line of different column names, then lines of numbers"),
        ("a,b\n1,2\n3\n", {}, "row 2: expected 2 values, one per column name; got 1"),
        ("a,b\n1,x\n", {}, "column 'b', row 1: expected a number; found 'x'"),
        ("a,b\n1,nan\n", {}, "column 'b', row 1: expected a number; found nan"),
        ("a,b\n1,2\n", {"targets": []}, "`problem.targets` must name columns of .*: a, b; got none"),
        ("a,bb\n1,2\n", {"targets": ["b"]}, "`problem.targets` must name columns, each once: a, bb; got 'b'. Did you"),
        ("a,b\n1,2\n", {"targets": ["b"], "inputs": ["b"]}, "`problem.inputs` must name columns that are not targets"),
        ("a,b\n1,2\n", {"targets": ["a", "b"]}, "`problem.inputs` must name columns that are not targets; got \\[\\]"),
        ("a,b\n1,2\n3,4\n", {"targets": ["b"]}, "has 2 rows, of which .* leave 0 to train on"),
        ("a,b\n" + "1,2\n" * 20, {"targets": ["b"]}, r"column 'b' is constant in one of the three splits \(12 rows\)"),
    ],
)
def test_an_invalid_table_raises_with_column_row_or_key(content, options, message, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_data(path, **options)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.array(["x"] * 9)}, "array 'a' must hold numbers"),
        ({"a": np.zeros((2, 2, 2))}, "array 'a' must hold numbers"),
        ({"a": np.zeros(5), "b": np.zeros(6)}, "all arrays must have the same number of rows; found {'a': 5, 'b': 6}"),
        ({"a": np.array([0.0, np.inf])}, "column 'a', row 2: expected a number; found inf"),
    ],
)
def test_invalid_arrays_raise_with_their_name(arrays, message, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_data(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nowhere.csv", ": there is no such file"), ("nowhere.npz", ":"), ("text.npz", ": is not an .npz file")],
)
def test_a_file_that_is_missing_or_not_an_archive_raises_with_its_key(tmp_path, name, reason):
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match=rf"`problem.data` .*{name}{reason}"):
        load_data(tmp_path / name)


def test_an_unknown_data_set_raises_with_the_names_of_all():
    with pytest.raises(DataError, match=r"must be breast_cancer, .*; got 'breast_canser'.*mean 'breast_cancer'\?"):
        load_data("breast_canser")


def test_data_of_scikit_learn_without_it_raise_with_package_and_extra(monkeypatch):
    for module in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"come from scikit-learn, which is not installed.*gradhomog\[problems\]"):
        load_data("breast_cancer", targets=[])


def test_a_relative_path_starts_at_the_working_directory(csv, monkeypatch):
    monkeypatch.chdir(Path(csv).parent)
    assert load_data("table.csv").tasks == ("sum", "product")


@pytest.mark.parametrize("value", [0.1, 5.0, 0.0, 1e200])
def test_an_input_that_is_constant_in_training_stays_small_in_the_other_parts(columns, tmp_path, value):
    x = np.full(ROWS, value)
    path = tmp_path / "table.npz"
    np.savez(path, **columns, constant=x)
    rows = load_data(path, inputs=["a", "constant"])
    assert rows.train.inputs[:, 1].abs().max() < 1e-6
    order = regression._split_rows(str(path), ROWS, (0.2, 0.2), 0)
    x[order[2][0]] = value + 5 * max(value, 1.0)
    np.savez(path, **columns, constant=x)
    assert load_data(path, inputs=["a", "constant"]).test.inputs[:, 1].abs().max() < 10


@pytest.mark.parametrize("factor", [1e300, 1e170, 1e-170])
def test_the_scale_of_columns_does_not_change_the_data(columns, tmp_path, factor):
    np.savez(tmp_path / "one.npz", **columns)
    np.savez(tmp_path / "two.npz", **{name: factor * values for name, values in columns.items()})
    one, two = load_data(tmp_path / "one.npz"), load_data(tmp_path / "two.npz")
    torch.testing.assert_close(two.train.inputs, one.train.inputs)
    torch.testing.assert_close(two.test.targets, one.test.targets)


@pytest.mark.slow
def test_a_data_set_of_scikit_learn_needs_only_its_name():
    data = regression.regression(problem_run(), data="breast_cancer")
    assert data.tasks == regression.BREAST_CANCER_TARGETS
    assert sum(len(split.inputs) for split in (data.train, data.validation, data.test)) == 569
    assert data.train.inputs.isfinite().all()
