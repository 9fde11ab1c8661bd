"""Averages of rows: restarted for other shapes, in float32 or wider, apart from the caller's memory."""

import pytest
import torch

import gradhomog
from gradhomog.registry import installed
from gradhomog.testing.snapshots import find_objects
from tests.plugins.rows import BUILT_IN, normal

AVERAGES = ["db_mtl", "excess_mtl", "metabalance", "moco(gamma=0)", "multiadam", "tracked(method='static', rows='all')"]
SIZES = torch.tensor([[1.0], [30.0], [0.1]], dtype=torch.float64)
LOSSES = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
ON_ROWS = [
    name for name in BUILT_IN
    if name not in ("tracked", "ntk") and not installed().load("homogenizers", name)[1].needs & {"features"}
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        *((method, {"a": normal(3, 2), "b": normal(3, 2, 2)}) for method in AVERAGES),
        *((method, normal(3, 6)) for method in AVERAGES if method != "metabalance"),  # which averages norms
    ],
)
def test_rows_of_other_names_or_shapes_restart_the_averages(method, rows):
    pipe = gradhomog.pipeline(method)
    pipe.combine(SIZES * normal(3, 4, seed=3), LOSSES)
    torch.testing.assert_close(pipe.combine(rows, LOSSES), gradhomog.pipeline(method).combine(rows, LOSSES))


@pytest.mark.parametrize("method", AVERAGES)
def test_a_direction_overwritten_by_the_caller_changes_no_average(method):
    pipe, other = gradhomog.pipeline(method), gradhomog.pipeline(method)
    for seed in range(3):
        rows = normal(3, 6, seed=seed)
        found = pipe.combine(rows, LOSSES)
        assert torch.equal(found, other.combine(rows, LOSSES))
        found.zero_()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["db_mtl(beta=0.999, log=false)", "moco(beta=0.001, beta_decay=0)", AVERAGES[-1]])
def test_half_precision_rows_are_averaged_in_float32(method, dtype):
    # An average in bfloat16 stops moving at once: one thousandth is below its rounding.
    pipe, exact = gradhomog.pipeline(method), gradhomog.pipeline(method)
    for step in range(20):
        rows = (1 + 0.1 * step + 0.1 * normal(3, 40, seed=step)).to(dtype)
        found = pipe.combine(rows)
        expected = exact.combine(rows.double())
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=1e-2)
    averages = find_objects(pipe.state_dict(), torch.Tensor)
    assert {average.dtype for _, average in averages} - {torch.float64} == {torch.float32}  # Gramians in float64


@pytest.mark.parametrize("method", ON_ROWS)
def test_float32_rows_have_the_direction_of_the_same_rows_in_float64(method):
    exact, single = gradhomog.pipeline(method), gradhomog.pipeline(method)
    for seed in range(4):
        rows = (SIZES * (normal(3, 300, seed=seed) + 0.3)).float()
        expected, found = exact.combine(rows.double(), LOSSES), single.combine(rows, LOSSES)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("method", ON_ROWS)
def test_rows_without_parameters_have_a_direction_without_parameters(method):
    pipe = gradhomog.pipeline(method)
    for _ in range(3):
        assert pipe.combine(torch.zeros(3, 0), LOSSES).shape == (0,)
