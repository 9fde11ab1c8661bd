"""Problems on real data: rows are those of the files, scores those of scikit-learn, and packages are not imported."""

import collections
import csv
import gzip
import sys
from importlib.metadata import files

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from gradhomog import DataError
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import make_trainable
from gradhomog_data._packages import packaged_file
from gradhomog_data.problems import real_data
from tests.data.problems.conftest import needs_recbole

ITEMS = 1682


def made(name):
    return make_trainable(load(None, [f"problem.name={name}"]), Run(name, "none", 0))


def located(package, name):
    """The path of a file of a distribution, by its list of files."""
    (path,) = (path.locate() for path in files(package) if path.name == name)
    return path


def test_genes_are_those_of_the_file_with_the_rarest_function_in_every_split():
    with gzip.open(located("river", "yeast.csv.gz"), "rt") as file:
        names, *rows = csv.reader(file)
    table = np.array(rows, dtype=np.float64)
    splits = made("yeast").splits
    x, y = (torch.cat(parts).numpy() for parts in zip(*splits.values(), strict=True))
    assert names[103:] == list(real_data.FUNCTIONS)
    assert [len(parts[0]) for parts in splits.values()] == [1412, 402, 603]
    assert [int(labels[:, -1].sum()) for _, labels in splits.values()] == [19, 6, 9]
    # Every column is standardized: an affine function, which the smallest and the largest value determine.
    features = table[:, :103]
    scale = (features.max(0) - features.min(0)) / (x.max(0) - x.min(0))
    found = np.concatenate([(x - x.min(0)) * scale + features.min(0), y], 1)
    nearest = torch.cdist(*(torch.from_numpy(each).double() for each in (found, table))).argmin(1)
    assert len(nearest.unique()) == len(table)
    assert np.abs(found - table[nearest]).max() < 1e-5
    train = splits["train"][0]
    assert torch.allclose(train.mean(0), torch.zeros(103), atol=1e-5)
    assert torch.allclose(train.std(0, correction=0), torch.ones(103), atol=1e-4)


@needs_recbole
def test_ratings_are_those_of_the_file_and_the_other_item_of_a_pair_is_not_rated():
    with located("recbole", "ml-100k.inter").open() as file:
        _, *rows = csv.reader(file, delimiter="\t")
    expected = {(int(user) - 1, int(item) - 1): float(rating) for user, item, rating, _ in rows}
    splits = made("movielens").splits
    pairs, others, values = (torch.cat(parts).tolist() for parts in zip(*splits.values(), strict=True))
    assert [len(parts[0]) for parts in splits.values()] == [70_000, 10_000, 20_000]
    assert {tuple(pair): value for pair, value in zip(pairs, values, strict=True)} == expected
    drawn = {(user, other) for (user, _), other in zip(pairs, others, strict=True)}
    assert len(drawn) == len(pairs)  # so that none is in two splits
    assert not drawn & expected.keys()
    # Uniform: the most and the least popular halves of the items are drawn about as often as they are not rated.
    popular = {item for item, _ in collections.Counter(item for _, item in expected).most_common(ITEMS // 2)}
    rated = collections.Counter(user for user, _ in expected)
    popular_rated = collections.Counter(user for user, item in expected if item in popular)
    chances = [(len(popular) - popular_rated[user]) / (ITEMS - rated[user]) for user, _ in pairs]
    assert np.mean([other in popular for other in others]) == pytest.approx(np.mean(chances), abs=0.01)


@pytest.mark.parametrize("name", ["yeast", pytest.param("movielens", marks=needs_recbole)])
def test_scores_are_errors_of_ranks_by_scikit_learn_and_those_of_a_constant_are_known(name):
    problem = made(name)
    parts = problem.splits["test"]
    with torch.no_grad():
        if name == "yeast":
            expected = [
                1 - roc_auc_score(label, out)
                for label, out in zip(parts[1].T, problem.network(parts[0]).T, strict=True)
            ]
        else:
            pairs, others, values = parts
            unrated = torch.stack([pairs[:, 0], others], 1)
            rated, unrated = problem.network(pairs), problem.network(unrated)
            mean = problem.splits["train"][2].double().mean()
            rmse = (rated[:, 0].double() + mean - values).square().mean().sqrt()
            labels = [1] * len(pairs) + [0] * len(pairs)
            area = roc_auc_score(labels, torch.cat([rated[:, 1], unrated[:, 1]]))
            expected = [float(rmse / (values - mean).square().mean().sqrt()), 2 * (1 - area)]
        assert problem.test([]).scores == pytest.approx(expected, rel=1e-5)
        for parameter in problem.network.parameters():
            parameter.zero_()
    constant = 0.5 if name == "yeast" else 1.0
    assert problem.test([]).scores == pytest.approx([constant] * len(expected), rel=1e-6)


def test_ties_of_outputs_count_half():
    random = torch.Generator().manual_seed(0)
    outputs = torch.randint(5, (300,), generator=random).float()
    labels = torch.randint(2, (300,), generator=random).float()
    assert float(real_data.area_under_curve(outputs, labels)) == pytest.approx(roc_auc_score(labels, outputs))


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [("yeast", "river", r"'gradhomog\[problems\]'"), ("movielens", "recbole", "--no-deps recbole")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(name, package, install, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    for read in (real_data.genes, real_data.ratings):
        read.cache_clear()
    with pytest.raises(
        DataError, match=f"`problem.name` {name} come from {package}, which is not .*: pip install {install}$"
    ):
        made(name)


def test_a_package_is_not_imported_and_another_version_without_the_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "__init__.py").write_text("raise RuntimeError")
    (tmp_path / "packed" / "b.csv").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert packaged_file("it is read from", "packed/b.csv") == tmp_path / "packed" / "b.csv"
    with pytest.raises(DataError, match=r"packed/a.csv, which the installed packed does not contain"):
        packaged_file("it is read from", "packed/a.csv")
