"""Nash-MTL and FairGrad: the length of the step in both scales."""

import pytest
import torch

import gradhomog
from tests.plugins.rows import normal

METHODS = ["nash_mtl", "fairgrad", "fairgrad(alpha=0.5)"]


def in_papers_scale(method, more=""):
    options = method.partition("(")[2].removesuffix(")")
    return f"{method.partition('(')[0]}({options}{', ' if options else ''}scale='paper'{more})"


@pytest.mark.parametrize("method", METHODS)
def test_scale_mean_projects_the_mean_on_the_direction_of_the_paper(method):
    rows = normal(4, 12, seed=1) * torch.tensor([[1.0], [5.0], [0.1], [2.0]])
    paper = gradhomog.pipeline(in_papers_scale(method)).combine(rows)
    unit = paper / paper.norm()
    torch.testing.assert_close(gradhomog.pipeline(method).combine(rows), (rows.mean(0) @ unit) * unit)


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_step_is_clipped_to_max_norm_where_it_is_longer(method):
    rows = normal(4, 12)
    paper = gradhomog.pipeline(in_papers_scale(method)).combine(rows)
    for factor, expected in ((0.5, 0.5 * paper), (1.5, paper)):
        more = f", max_norm={factor * float(paper.norm())}"
        torch.testing.assert_close(gradhomog.pipeline(in_papers_scale(method, more)).combine(rows), expected)
