"""Problems on real data in installed packages: functions of yeast genes, and ratings and clicks of MovieLens."""

import functools
from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from gradhomog import ProblemRun
from gradhomog_data._packages import packaged_file
from gradhomog_data._seeding import generator
from gradhomog_data.problems._held_out import Splits, divide
from gradhomog_data.problems._table_layers import Architecture, ExpertLayers, TableProblem, table_layers
from gradhomog_data.problems.generated import Embeddings


def area_under_curve(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the probability that a positive example has a larger output than a negative one; ties count half."""
    negative, positive = outputs[labels == 0].sort().values, outputs[labels == 1]
    below = torch.searchsorted(negative, positive) + torch.searchsorted(negative, positive, right=True)
    return below.double().mean() / (2 * len(negative))


GENE_FEATURES = 103

FUNCTIONS = tuple(f"Class{number}" for number in range(1, 15))
"""Names of the functions of a gene in the table; "Class14" is the rarest."""


@functools.cache  # one process runs many trainings on the same data
def genes() -> NDArray[np.float32]:
    """Return the features and the labels of each gene, `[2417, 103 + 14]`.

    Raises:
        DataError: river is not installed.
    """
    path = packaged_file("the genes of `problem.name` yeast come from", "river/datasets/yeast.csv.gz", "problems")
    return np.loadtxt(path, np.float32, delimiter=",", skiprows=1)


class Yeast(TableProblem):
    """A multilayer perceptron predicts the 14 functions of a yeast gene from its expression and phylogenetic profile.

    The tasks are binary labels, positive for 1.4 to 75 % of the genes; the loss of a task is the cross-entropy. The
    features are standardized by the mean and standard deviation of the training genes. The score of a task is 1 − AUC,
    because the rate of errors of most labels is that of a constant. The mean over the tasks is 1 minus the
    macro-averaged AUC.

    Source of the data: Elisseeff & Weston 2001, "A kernel method for multi-labelled classification", in the version of
    MULAN.

    Args:
        seed: of the division of the genes: 7/12 are for training, 1/6 for validation and 1/4 for test. Each split has
            its share of the 34 genes with the rarest function.
        architecture: `"shared_bottom"`, `"mmoe"` or `"ple"` of torch-rechub; by default, a perceptron.
    """

    BATCH = 64

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0, architecture: Architecture = None) -> None:
        rows = genes()[generator(seed).permutation(len(genes()))]
        rows = rows[rows[:, -1].argsort(kind="stable")]
        dealt = [rows[turn::12] for turn in range(12)]
        parts = [np.concatenate(part) for part in (dealt[:7], dealt[7:9], dealt[9:])]
        train = parts[0][:, :GENE_FEATURES]
        x, y = np.split(np.concatenate(parts), [GENE_FEATURES], axis=1)
        super().__init__(
            run, FUNCTIONS, divide([*map(len, parts)], (x - train.mean(0)) / train.std(0), y),
            lambda: table_layers(architecture, GENE_FEATURES, len(FUNCTIONS), run.width),
            "Scores: 1 - AUC of each function of a gene.",
        )  # fmt: skip

    def losses(self, index: int) -> dict[str, Tensor]:
        x, y = self.splits["train"]
        chosen = self.batch(len(x), self.BATCH, self.random(index))
        if isinstance(self.network, ExpertLayers):
            outputs, targets = self.network.columns(x[chosen]), y[chosen, :, None].unbind(1)
            return dict(zip(self.tasks, map(binary_cross_entropy_with_logits, outputs, targets), strict=True))
        losses = binary_cross_entropy_with_logits(self.network(x[chosen]), y[chosen], reduction="none").mean(0)
        return dict(zip(self.tasks, losses.unbind(), strict=True))

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        x, y = split
        columns = zip(self.tasks, self.network(x).unbind(1), y.unbind(1), strict=True)
        return {name: float(1 - area_under_curve(outputs, labels)) for name, outputs, labels in columns}


RATING, CLICK = "rating", "click"

USERS, ITEMS = 943, 1682

RATINGS = (70_000, 10_000, 20_000)
"""Ratings for training, validation and test."""


@functools.cache  # one process runs many trainings on the same data
def ratings() -> NDArray[np.int64]:
    """Return user, item and rating, `[100000, 3]`; users and items are counted from 0.

    Raises:
        DataError: recbole is not installed.
    """
    path = packaged_file(
        "the ratings of `problem.name` movielens come from", "recbole/dataset_example/ml-100k/ml-100k.inter"
    )
    table: NDArray[np.int64] = np.loadtxt(path, np.int64, delimiter="\t", skiprows=1, usecols=(0, 1, 2))
    table[:, :2] -= 1
    return table


def rated_pairs(seed: int) -> Splits:
    """Return pairs `[n, 2]`, an item that the user did not rate, and the rating, `[n]`, for each split."""
    random = generator(seed)
    users, items, values = random.permutation(ratings()).T
    rated = np.zeros((USERS, ITEMS), dtype=bool)
    rated[users, items] = True
    # A random order of the items that each user did not rate; they are more than the rated ones, so that none repeats.
    unrated = np.where(rated, 1.0, random.random(rated.shape)).argsort(axis=1)
    by_user = users.argsort(kind="stable")
    place = np.empty_like(users)
    place[by_user] = np.arange(len(users)) - np.searchsorted(users[by_user], users[by_user])
    return divide(RATINGS, np.stack([users, items], 1), unrated[users, place], values.astype(np.float32))


class MovieLens(TableProblem):
    """A network with embeddings of users and items predicts the rating of an item, and whether it is rated ("click").

    The data are MovieLens 100k: 100,000 ratings from 1 to 5, of 943 users and 1682 items. The loss of "rating" is the
    squared error of the deviation from the mean training rating. "click" distinguishes a rated item from one that the
    same user did not rate in any split, drawn uniformly without repetition, one for each rating (He et al. 2017, arXiv
    1708.05031, draw four); its loss is the cross-entropy on both.

    Scores, of which a constant output has 1: for "rating", the root mean squared error over that of the mean training
    rating. For "click", 2 (1 − AUC).

    Source of the data: Harper & Konstan 2015, doi 10.1145/2827872; GroupLens allows research.

    Args:
        seed: of the division of the ratings, and of the items that are not rated.
        architecture: of the layers after the embeddings: `"shared_bottom"`, `"mmoe"` or `"ple"` of torch-rechub; by
            default, a perceptron.
    """

    BATCH = 256

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0, architecture: Architecture = None) -> None:
        super().__init__(
            run, (RATING, CLICK), rated_pairs(seed), lambda: Embeddings(USERS, ITEMS, 2, run.width, architecture),
            "Scores, of which a constant output has 1: relative root mean squared error of the rating; 2 (1 - AUC) of "
            "the click.",
        )  # fmt: skip
        self.mean = self.splits["train"][2].mean()

    def losses(self, index: int) -> dict[str, Tensor]:
        pairs, others, values = self.splits["train"]
        chosen = self.batch(len(pairs), self.BATCH, self.random(index))
        outputs, clicked = self.outputs(pairs[chosen], others[chosen])
        return {
            RATING: mse_loss(outputs[: self.BATCH, 0], values[chosen] - self.mean),
            CLICK: binary_cross_entropy_with_logits(outputs[:, 1], clicked),
        }

    def outputs(self, pairs: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs `[2n, 2]` of rated and of other pairs, and 1 for the rated."""
        users, items = pairs.unbind(1)
        outputs = self.network(torch.stack([users.repeat(2), torch.cat([items, others])], 1))
        return outputs, (torch.arange(len(outputs), device=outputs.device) < len(pairs)).to(outputs.dtype)

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        pairs, others, values = split
        outputs, clicked = self.outputs(pairs, others)
        deviations = values - self.mean
        errors = outputs[: len(pairs), 0] - deviations
        return {
            RATING: float((errors.square().mean() / deviations.square().mean()).sqrt()),
            CLICK: float(2 - 2 * area_under_curve(outputs[:, 1], clicked)),
        }
