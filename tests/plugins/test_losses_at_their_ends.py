"""Losses near the ends of float64 and losses without a weight, for all methods that weight tasks by their losses."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from tests.plugins.from_losses import weights

learned_by_adam = pytest.mark.parametrize("method", ["uw", "imtl_l"])


@pytest.mark.parametrize(
    ("method", "loss", "message"),
    [
        ("geometric_mean", 0.0, "losses must be positive"),
        ("scale_invariant", 0.0, "losses must be positive"),
        ("uw_so", 0.0, "losses must be positive"),
        ("go4align", 0.0, "losses must be positive"),
        ("cosmos", -0.1, "losses must not be negative"),
        ("ldc_mtl", -1.0, "losses must not be negative for 'initial'"),
        ("ldc_mtl", 0.0, "the first loss of a task must not be zero"),
        ("ldc_mtl(normalization='log')", 0.0, "losses must be positive for 'log'"),
        ("relobralo", -2.0, "losses must not be negative"),
        ("softadapt(variant='loss_weighted')", -1.0, "losses must not be negative"),
        ("db_mtl", 5e-324, "losses must be zero or at least 1e-300"),
        ("db_mtl", -1.0, "losses must not be negative"),
        ("mgda(normalize='loss')", 0.0, "losses must be positive"),
        ("stch(log=true)", 0.0, "losses must be positive, because `log=True`"),
        ("dwa", -1.0, "losses must not be negative"),
        ("uw", -0.5, "losses must not be negative"),
        ("imtl_l", -0.5, "losses must not be negative"),
        ("gradnorm", -1.0, "losses must not be negative"),
        ("gradnorm", 0.0, "the first loss of a task must not be zero"),
        ("famo(lowest=0.5)", 0.4, "losses must not be below `lowest`"),
    ],
)
def test_a_loss_without_a_weight_raises_with_the_name_and_changes_no_state(method, loss, message):
    pipe = gradhomog.pipeline(method)
    before = pipe.state_dict()
    name = method.partition("(")[0]
    with pytest.raises(OptionError, match=rf"{name}.*: {message}.*; task 1 of domain 'x' has {loss!r}"):
        pipe.combine(torch.eye(2), losses=torch.tensor([1.0, loss], dtype=torch.float64), domains=["y", "x"])
    assert pipe.state_dict() == before


@learned_by_adam
@pytest.mark.parametrize("loss", [1e300, 1.7e308])
def test_a_loss_that_adam_cannot_square_raises_with_the_name_and_changes_no_state(method, loss):
    pipe = gradhomog.pipeline(method)
    before = pipe.state_dict()
    message = rf"{method}.*: losses times their weights must be below 1e\+150.*; task 1 has 1"
    with pytest.raises(OptionError, match=message):
        pipe.combine(torch.eye(2), losses=[1.0, loss])
    assert pipe.state_dict() == before


@learned_by_adam
@pytest.mark.parametrize("loss", [1e-300, 5e-324])
def test_a_loss_near_zero_has_the_weight_of_a_loss_of_zero(method, loss):
    assert torch.equal(weights(method, [loss, 1.0], steps=3), weights(method, [0.0, 1.0], steps=3))


@pytest.mark.parametrize("factor", [5e-324, 1e-300, 1e-155, 1e300, 4e307])
@pytest.mark.parametrize(
    "method",
    [
        "geometric_mean", "geometric_mean(scale='paper')", "scale_invariant", "famo(lr=0.5)", "ldc_mtl(lr=0.1)",
        "mgda(normalize='loss')", "mgda(normalize='loss+')", "pbi(penalty=0.4, preferences=[1, 2, 1])", "db_mtl",
    ],
)  # fmt: skip
def test_a_common_factor_of_any_size_changes_nothing(method, factor):
    if (method, factor) == ("db_mtl", 5e-324):
        return  # which has no inverse
    pipes = gradhomog.pipeline(method), gradhomog.pipeline(method)
    rows = torch.tensor([[1.0, 0.2, 0.0], [-0.5, 1.0, 0.3], [0.0, 0.4, 2.0]], dtype=torch.float64)
    for step in range(3):
        losses = torch.tensor([1.0, 2.0**step, 3.0], dtype=torch.float64)
        scaled = losses * factor
        losses = scaled / factor  # as rounded: subnormal numbers have few digits
        found, expected = (pipe.combine(rows, values) for pipe, values in zip(pipes, (scaled, losses), strict=True))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "losses", "task"),
    [("geometric_mean", [1e-300, 1.0], 0), ("scale_invariant", [1.0, 5e-324], 1), ("stch(log=true)", [1.0, 1e-155], 1)],
)
def test_weights_in_the_paper_scale_too_large_for_float32_raise_with_the_name(method, losses, task):
    paper = method.replace(")", ", scale='paper')") if ")" in method else f"{method}(scale='paper')"
    name = method.partition("(")[0]
    with pytest.raises(OptionError, match=rf"{name}.*: weights .* at most 1e\+30; task {task} has .*use scale='mean'"):
        weights(paper, losses)
    assert weights(method, losses).sum() == 2
