"""Tables: read from CSV and NPZ alike, standardised by their training rows, and refused with column and row."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradhomog import ConfigError, DataError
from gradhomog.experiments.config.schema import load
from gradhomog.experiments.problems import regression, table
from gradhomog.experiments.problems.regression import Regression
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.training.trainer import trainable

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


def opened(path, **options):
    return regression.data(Regression(data=str(path), **{"targets": ["sum", "product"], **options}))


def test_csv_and_npz_of_the_same_columns_give_the_same_data(csv, columns, tmp_path):
    np.savez(tmp_path / "table.npz", **columns)
    one, two = opened(csv), opened(tmp_path / "table.npz")
    assert one.tasks == two.tasks == ("sum", "product")
    assert torch.equal(one.train.inputs, two.train.inputs)
    assert all(map(torch.equal, one.test.targets, two.test.targets))


def test_an_array_of_several_columns_is_several_tasks(columns, tmp_path):
    np.savez(tmp_path / "two.npz", x=np.stack([columns["a"], columns["b"]], 1), y=np.stack([columns["c"]] * 2, 1))
    made = opened(tmp_path / "two.npz", targets=["y"])
    assert made.tasks == ("y[0]", "y[1]")
    assert made.train.inputs.shape[1] == 2


def test_two_tasks_of_one_title_are_refused_by_it(columns, tmp_path):
    pair = np.stack([columns["a"], columns["b"]], 1)
    np.savez(tmp_path / "alike.npz", **{"x": columns["c"], "y": pair, "y[0]": columns["sum"]})
    with pytest.raises(DataError, match=r"`problem.targets`: two columns of .* are called 'y\[0\]': .* one of 'y'"):
        opened(tmp_path / "alike.npz", targets=["y", "y[0]"])
    assert opened(tmp_path / "alike.npz", targets=["y[0]"]).tasks == ("y[0]",)
    assert opened(tmp_path / "alike.npz", targets=["x"]).train.inputs.shape[1] == 3  # inputs are not told apart by name


def test_rows_are_each_in_one_part_and_inputs_go_with_their_targets(csv, columns):
    made = opened(csv, inputs=["a"], targets=["b"])
    parts = (made.train, made.validation, made.test)
    assert [len(part.inputs) for part in parts] == [30, 10, 10]
    pairs = torch.cat([torch.cat([part.inputs, part.targets[0]], dim=1) for part in parts]).double().numpy()
    # Standardising keeps the order of a column, and so which rows are there and what goes with what.
    order, expected = np.argsort(pairs[:, 0]), np.argsort(columns["a"])
    assert np.corrcoef(pairs[order, 1], columns["b"][expected])[0, 1] == pytest.approx(1, abs=1e-6)
    assert np.corrcoef(pairs[order, 0], columns["a"][expected])[0, 1] == pytest.approx(1, abs=1e-6)


def test_training_rows_have_mean_zero_and_deviation_one_and_others_are_scaled_alike(csv):
    made = opened(csv)
    for values in (made.train.inputs, *made.train.targets):
        assert values.double().mean(0).abs().max() < 1e-6
        assert (values.double().std(0, correction=0) - 1).abs().max() < 1e-6
    assert made.test.inputs.double().mean(0).abs().max() > 1e-3


def test_the_seed_decides_the_parts(csv):
    one, same, other = (opened(csv, seed=seed).train.inputs for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@given(count=st.integers(6, 40), validation=st.floats(0.01, 0.6), test=st.floats(0.01, 0.6))
def test_parts_of_any_sizes_hold_every_row_once_or_are_refused(count, validation, test):
    options = Regression(validation=validation, test=test)
    if count - max(2, round(validation * count)) - max(2, round(test * count)) < 2:
        with pytest.raises(DataError, match="at least 2 are needed in each part"):
            regression._split_rows(options, count)
        return
    parts = regression._split_rows(options, count)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    assert min(map(len, parts)) >= 2


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "expected a line of column names"),
        ("a,a\n1,2\n", {}, "expected a line of column names, no two alike"),
        ("a,b\n1,2\n3\n", {}, "row 2: expected 2 values, as there are names; got 1"),
        ("a,b\n1,x\n", {}, "column 'b', row 1: expected a number; found 'x'"),
        ("a,b\n1,2\n3,\n", {}, "column 'b', row 2: expected a number; found ''"),
        ("a,b\n1,nan\n", {}, "column 'b', row 1: expected a number; found 'nan'"),
        ("a,b\n1,2\n", {"targets": []}, "`problem.targets` must name columns of .*: a, b; got none"),
        ("a,bb\n1,2\n", {"targets": ["b"]}, "`problem.targets` must name columns, each once: a, bb; got 'b'. Did you"),
        ("a,b\n1,2\n", {"targets": ["b"], "inputs": ["b"]}, "`problem.inputs` must name columns that are no targets"),
        ("a,b\n1,2\n", {"targets": ["a", "b"]}, "`problem.inputs` must name columns that are no targets; got \\[\\]"),
        ("a,b\n1,2\n3,4\n", {"targets": ["b"]}, "has 2 rows, of which .* leave 0 to train on"),
        ("a,b\n" + "1,2\n" * 20, {"targets": ["b"]}, "`problem.targets`: 'b' has one value only in a part of 12 rows"),
    ],
)
def test_a_table_that_cannot_be_used_is_told_with_column_row_or_key(content, options, message, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        opened(path, **options)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.array(["x"] * 9)}, "array 'a' must hold numbers"),
        ({"a": np.zeros((2, 2, 2))}, "array 'a' must hold numbers"),
        ({"a": np.zeros(5), "b": np.zeros(6)}, "all arrays must have the same number of rows; found {'a': 5, 'b': 6}"),
        ({"a": np.array([0.0, np.inf])}, "column 'a', row 2: expected a number; found inf"),
    ],
)
def test_arrays_that_cannot_be_used_are_told_by_name(arrays, message, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "bad.npz")


@pytest.mark.parametrize("name", ["nowhere.csv", "nowhere.npz"])
def test_a_file_that_is_missing_is_told_by_key(name):
    with pytest.raises(DataError, match=rf"`problem.data` {name}(:| cannot be read)"):
        opened(name)


def test_a_file_that_is_no_archive_is_told_by_key(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"`problem.data` .*text.npz: is not an .npz file"):
        opened(tmp_path / "text.npz")


def test_a_name_that_is_no_data_set_is_told_with_those_there_are():
    with pytest.raises(DataError, match=r"must be one of linnerud, .*; got 'Diabetis'. Did you mean 'diabetes'\?"):
        opened("Diabetis")


@pytest.mark.parametrize("name", table.TARGETS)
def test_without_scikit_learn_its_data_are_an_error_that_names_package_and_extra(name, monkeypatch):
    for module in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"come from scikit-learn, which is not installed.*gradhomog\[problems\]"):
        opened(name, targets=[])


def test_a_network_for_images_is_refused_for_a_table(csv):
    config = load(
        None, ["problem.name=regression", f"problem.data={csv}", 'problem.targets=["sum"]', "network.name=conv4"]
    )
    with pytest.raises(ConfigError, match=r"`network.name` conv4 takes square images"):
        trainable(config, Run("regression", "none", 0))


def test_a_relative_path_is_seen_from_the_working_directory(csv, monkeypatch):
    monkeypatch.chdir(Path(csv).parent)
    assert opened("table.csv").tasks == ("sum", "product")


@pytest.mark.parametrize("value", [0.1, 5.0, 0.0, 1e200])
def test_an_input_that_is_constant_in_training_stays_small_where_it_is_not(columns, tmp_path, value):
    x = np.full(ROWS, value)
    path = tmp_path / "table.npz"
    np.savez(path, **columns, constant=x)
    rows = opened(path, inputs=["a", "constant"])
    assert rows.train.inputs[:, 1].abs().max() < 1e-6
    order = regression._split_rows(Regression(data=str(path), targets=["sum", "product"]), ROWS)
    x[order[2][0]] = value + 5 * max(value, 1.0)
    np.savez(path, **columns, constant=x)
    assert opened(path, inputs=["a", "constant"]).test.inputs[:, 1].abs().max() < 10


@pytest.mark.parametrize("factor", [1e300, 1e170, 1e-170])
def test_columns_of_any_size_are_the_same_data(columns, tmp_path, factor):
    np.savez(tmp_path / "one.npz", **columns)
    np.savez(tmp_path / "two.npz", **{name: factor * values for name, values in columns.items()})
    one, two = opened(tmp_path / "one.npz"), opened(tmp_path / "two.npz")
    torch.testing.assert_close(two.train.inputs, one.train.inputs)
    torch.testing.assert_close(two.test.targets, one.test.targets)
