"""`gradhomog.Diagnosis`: rows and losses in every form, names, bounded memory, no side effects, results."""

import json
import math
import re

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog.errors import DataError, OptionError
from tests.diagnosis.synthetic import draw, fed, means

ROWS = draw(means((3.0, 0.0), (-1.0, 2.0), params=12), 8, seed=0, noise=0.5)


def network() -> tuple[nn.Module, nn.ModuleList]:
    torch.manual_seed(0)
    return nn.Linear(3, 4), nn.ModuleList(nn.Linear(4, 1) for _ in range(2))


def losses(encoder, heads, seed) -> dict[str, torch.Tensor]:
    inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
    features = encoder(inputs).tanh()
    return {name: (head(features) - 1).square().mean() for name, head in zip(("x", "y"), heads, strict=True)}


def test_rows_by_parameter_and_as_a_jacobian_give_the_result_of_a_tensor():
    one = fed(ROWS, ["a", "b"]).record()
    blocks = [{"weight": rows[:, :8].reshape(2, 4, 2), "bias": rows[:, 8:]} for rows in ROWS]
    assert fed(blocks, ["a", "b"]).record() == one
    assert fed([gradhomog.as_jacobian(rows) for rows in ROWS], ["a", "b"]).record() == one


def test_the_order_of_rows_is_free_if_they_have_names():
    diagnosis = gradhomog.Diagnosis(["a", "b"])
    for index, rows in enumerate(ROWS):
        order = [1, 0] if index % 2 else [0, 1]
        diagnosis.add(rows[order], [("a", "b")[task] for task in order])
    found, expected = diagnosis.result(), fed(ROWS, ["a", "b"])
    torch.testing.assert_close(found.expected.cosines.value, expected.expected.cosines.value)
    torch.testing.assert_close(found.noise.noise_scales.value, expected.noise.noise_scales.value)


def test_parameters_by_name_may_be_in_another_order_in_every_batch():
    diagnosis = gradhomog.Diagnosis()
    weight, bias = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), torch.zeros(2, 3)
    for batch in range(6):
        diagnosis.add({"w": weight, "b": bias} if batch % 2 else {"b": bias, "w": weight})
    assert (diagnosis.result().expected.inner_products.value == 1).all()


def test_inferred_parameters_must_be_the_same_in_all_batches():
    """Without the first task, the order in which the graph reaches the parameters changes."""
    u, v, x = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), torch.arange(1.0, 4)
    diagnosis = gradhomog.Diagnosis()
    a, b, c = (u * x).sum() + v.sum(), v.sum() + (u * x).sum(), v.sum() - u.sum()
    diagnosis.add_losses({"a": a, "b": b, "c": c})
    with pytest.raises(OptionError, match="batch 1 share other parameters, or in another order"):
        diagnosis.add_losses({"a": None, "b": b, "c": c})
    assert diagnosis._store.batches == 1


def test_infinite_ends_are_text_in_the_record():
    rows = draw(means((0.0,), (0.0,), params=300), 30, seed=0)
    record = fed(rows, ["a", "b"]).record()
    assert "inf" in record["noise"]["noise_scales"]["high"]
    json.dumps(record, allow_nan=False)
    assert (record["parallel"], record["summed"], record["left_out"]) == (False, [], {})


def test_names_appear_in_order_or_are_positions():
    assert fed(ROWS).tasks == ("0", "1")
    diagnosis = gradhomog.Diagnosis()
    for rows in ROWS:
        diagnosis.add(rows, ["later", "earlier"])
    assert diagnosis.result().tasks == ("later", "earlier")


def test_losses_give_the_rows_of_autograd_and_change_no_gradient():
    encoder, heads = network()
    by_losses, by_rows = gradhomog.Diagnosis(), gradhomog.Diagnosis()
    encoder.weight.grad = torch.ones_like(encoder.weight)
    for seed in range(4):
        found = losses(encoder, heads, seed)
        by_losses.add_losses(found, encoder)
        rows = [torch.autograd.grad(loss, list(encoder.parameters()), retain_graph=True) for loss in found.values()]
        by_rows.add(torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]), ["x", "y"])
        sum(found.values()).backward(inputs=list(heads.parameters()))  # the graph is kept for the training step
    one, other = by_losses.result(), by_rows.result()
    assert one.tasks == ("x", "y")
    torch.testing.assert_close(one.expected.inner_products.value, other.expected.inner_products.value)
    assert (encoder.weight.grad == 1).all()
    assert encoder.bias.grad is None


def test_an_absent_task_has_no_row_in_its_batch():
    encoder, heads = network()
    diagnosis = gradhomog.Diagnosis()
    for seed in range(6):
        found: dict = losses(encoder, heads, seed)
        if seed % 3 == 0:
            found["y"] = None
        diagnosis.add_losses(found, encoder)
    whole = gradhomog.Diagnosis(["x"])
    for seed in range(6):
        whole.add_losses({"x": losses(encoder, heads, seed)["x"]}, encoder)
    partial, alone = diagnosis.result(), whole.result()
    torch.testing.assert_close(partial.expected.inner_products.value[0, 0], alone.expected.inner_products.value[0, 0])
    assert partial.expected.inner_products.value.isfinite().all()


def test_losses_in_a_sequence_and_shared_parameters_are_found_as_in_backward():
    encoder, heads = network()
    diagnosis = gradhomog.Diagnosis(["x", "y"])
    for seed in range(3):
        diagnosis.add_losses([*losses(encoder, heads, seed).values()])
    assert diagnosis.result().params == sum(parameter.numel() for parameter in encoder.parameters())


def test_a_parameter_that_a_loss_does_not_use_has_a_zero_gradient():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    diagnosis = gradhomog.Diagnosis()
    for scale in (1.0, 2.0, 3.0):
        diagnosis.add_losses([scale * first.sum(), scale * (first.sum() + second.sum())], [first, second])
    assert diagnosis.result().single.norms.value.tolist() == pytest.approx([2 * math.sqrt(2), 2 * math.sqrt(5)])


def test_memory_is_bounded_by_the_columns_and_the_error_is_stated():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 5000, generator=generator)
    diagnosis = gradhomog.Diagnosis(["a", "b"], columns=500)
    for _ in range(10):
        diagnosis.add(mean + 0.2 * torch.randn(2, 5000, generator=generator))
    assert {rows.shape for rows in diagnosis._store._rows} == {(2, 500)}
    found = diagnosis.result()
    assert found.cosine_error == pytest.approx(math.sqrt(2 / 500))
    exact = float(torch.nn.functional.cosine_similarity(mean[0], mean[1], dim=0))
    assert abs(float(found.expected.cosines.value[0, 1]) - exact) < 4 * found.cosine_error
    assert "sketched to 500" in found.table()
    assert "biased towards 50 %" in found.table()
    assert "biased" not in fed(ROWS, ["a", "b"]).table()
    assert fed(ROWS, ["a", "b"]).cosine_error == 0


def test_more_batches_can_be_added_after_a_result():
    diagnosis = gradhomog.Diagnosis(["a", "b"])
    for rows in ROWS[:4]:
        diagnosis.add(rows)
    assert diagnosis.result().batches == 4
    for rows in ROWS[4:]:
        diagnosis.add(rows)
    assert diagnosis.result().record() == fed(ROWS, ["a", "b"]).record()


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_rows_without_noise_give_strict_json_and_a_table(tasks):
    rows = torch.tensor([[3.0, 0.0], [-1.0, 2.0], [0.5, 0.5]])[:tasks].repeat(4, 1, 1)
    found = fed(rows, batch_size=32)
    text = json.dumps(found.record(), allow_nan=False)
    assert "no_noise" in text
    assert "nan" not in found.table()
    assert (found.expected.signal_fractions.value - 1).abs().max() < 1e-12


def test_noise_scales_in_examples_are_multiples_of_the_batch_size():
    found = fed(ROWS, ["a", "b"], batch_size=10)
    header, _, first = [re.split("  +", line) for line in found.table().splitlines()[4:7]]
    assert (found.batch_size, header[-1], first[0]) == (10, "in examples", "a")
    scales = found.noise.noise_scales
    in_batches = [float(getattr(scales, name)[0]) for name in ("value", "low", "high")]
    in_examples = [float(part) for part in re.findall(r"[\d.]+", first[-1])]
    assert in_examples == pytest.approx([10 * part for part in in_batches], rel=0.06)  # two digits


def test_many_pairs_are_cut_in_the_table_but_not_in_the_record():
    rows = torch.randn(4, 8, 30, generator=torch.Generator().manual_seed(0))
    found = fed(rows)
    assert "… and 13 pairs" in found.table()
    assert len(found.record()["expected"]["cosines"]["value"]) == 8


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["a", "a"], {}, "`names` must contain the different names"),
        ("ab", {}, "got 'ab'"),
        (None, {"columns": 1.5}, "`columns` must be an integer ≥ 1; got 1.5"),
    ],
)
def test_invalid_options_raise(names, options, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.Diagnosis(names, **options)


def test_invalid_rows_raise_and_are_not_added():
    diagnosis = gradhomog.Diagnosis(["a", "b"])
    with pytest.raises(OptionError, match="one row for each of the 2 `names`; got 3"):
        diagnosis.add(torch.ones(3, 4))
    with pytest.raises(DataError, match="among a, b; got c"):
        diagnosis.add(torch.ones(2, 4), ["a", "c"])
    with pytest.raises(DataError, match=r"\[tasks, params\]"):
        diagnosis.add(torch.ones(4))
    with pytest.raises(DataError, match="batch 0 has NaN or infinity in the row of b"):
        diagnosis.add(torch.tensor([[1.0], [math.nan]]))
    with pytest.raises(OptionError, match="`names` must contain one name for each of the 2 rows; got \\['a'\\]"):
        diagnosis.add(torch.ones(2, 4), ["a"])
    with pytest.raises(OptionError, match="at least 3 batches; got 0"):
        diagnosis.result()
    with pytest.raises(OptionError, match="depend on none"):
        diagnosis.add_losses([torch.ones(1, requires_grad=True).sum()] * 2, [nn.Parameter(torch.ones(2))])
