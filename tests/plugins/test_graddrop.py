"""GradDrop against TorchJD with the same draws, algorithm 1 written out, and the mean over all draws."""

import pytest
import torch
import torchjd.aggregation
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog import OptionError, TaskKey
from gradhomog.bench.cost.memory import peak_bytes
from gradhomog.testing import jacobians
from gradhomog_plugins import _one_sign
from gradhomog_plugins._lots import Lots, draw
from gradhomog_plugins._one_sign import drop, drop_into
from gradhomog_plugins.graddrop import OnParameters, Options


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def uniform(size, seed=0):
    """U as the first step with this seed draws it: a number in [0, 1), exact in float64."""
    return (draw(size, torch.Generator().manual_seed(seed)).double() + 1) / 2


def algorithm_1(rows, draws, leak=0.0, sharpness=1.0):
    """Lines 10 to 15 of the paper, task by task; f is the line of slope `sharpness` through (½, ½)."""
    sizes = rows.abs().sum(0)
    purity = torch.where(sizes > 0, (1 + rows.sum(0) / sizes) / 2, 0.5)
    keep = (0.5 + sharpness * (purity - 0.5)).clamp(0, 1)
    leaks = torch.as_tensor(leak, dtype=rows.dtype).expand(len(rows))
    total = torch.zeros_like(rows[0])
    for row, share in zip(rows, leaks, strict=True):
        mask = (keep > draws) * (row > 0) + (keep < draws) * (row < 0)
        total = total + (share + (1 - share) * mask) * row
    return total


@pytest.mark.parametrize("leak", [0.0, [0.25, 0.0, 1.0, 0.5]])
def test_it_is_torchjd_with_the_same_random_numbers(monkeypatch, leak):
    rows = normal(4, 5000)
    pipe = gradhomog.pipeline([("graddrop", {"scale": "paper", "seed": 7, "leak": leak})])
    monkeypatch.setattr(torch, "rand", lambda shape, dtype, device: uniform(*shape, seed=7).to(device, dtype))
    expected = torchjd.aggregation.GradDrop(leak=torch.tensor(leak) if leak else None)(rows)
    torch.testing.assert_close(pipe.combine(rows), expected, rtol=1e-5, atol=1e-5)


@given(jacobians(), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1.0, 3.0, 50.0]), st.integers(0, 1000))
def test_it_is_algorithm_1_written_out(rows, leak, sharpness, seed):
    pipe = gradhomog.pipeline(f"graddrop(leak={leak}, sharpness={sharpness}, seed={seed}, scale='paper')")
    expected = algorithm_1(rows, uniform(rows.shape[1], seed), leak, sharpness)
    torch.testing.assert_close(pipe.combine(rows), expected, rtol=1e-9, atol=1e-12 * float(rows.abs().max()))


def test_the_mean_over_draws_weighs_each_sign_by_its_share_of_the_mass():
    rows = normal(5, 1, dtype=torch.float64).expand(5, 20000)  # one coordinate, drawn 20000 times
    above, below = rows.clamp_min(0).sum(0)[0], -rows.clamp_max(0).sum(0)[0]
    purity = above / (above + below)
    expected = purity * above - (1 - purity) * below
    found = gradhomog.pipeline("graddrop(scale='paper')").combine(rows)
    error = float((purity * (1 - purity)).sqrt() * (above + below)) / 20000**0.5
    torch.testing.assert_close(found.unique(), torch.stack([-below, above]))
    assert abs(float(found.mean() - expected)) < 5 * error


def test_u_is_uniform_and_independent_from_one_coordinate_to_the_next():
    draws = uniform(200_000, seed=11)
    assert 0 <= float(draws.min()) < 1e-4 < 1 - 1e-4 < float(draws.max()) <= 1
    counts = torch.histc(draws, bins=100, min=0, max=1)
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 160  # χ² of 99 degrees of freedom: above 160 with 1e-4
    for apart in (1, 2, 3, 33_336):
        correlation = torch.corrcoef(torch.stack([draws[:-apart], draws[apart:]]))[0, 1]
        assert abs(float(correlation)) < 4 / 200_000**0.5


@given(st.lists(st.integers(0, 23), max_size=12), st.integers(0, 100))
def test_in_pieces_the_same_numbers_are_drawn_as_at_once(sizes, seed):
    lots = Lots(torch.Generator().manual_seed(seed))
    pieces = [lots.fill(torch.empty(size), room=torch.empty(size)) / lots.unit for size in sizes]
    assert torch.equal(torch.cat([*pieces, torch.empty(0)]), draw(sum(sizes), torch.Generator().manual_seed(seed)))


def test_the_draw_depends_on_neither_blocks_nor_tensors_nor_precision(monkeypatch):
    rows = normal(3, 101)
    whole = gradhomog.pipeline("graddrop").combine(rows)
    parts = gradhomog.pipeline("graddrop").combine({"a": rows[:, :60].reshape(3, 4, 15), "b": rows[:, 60:]})
    torch.testing.assert_close(torch.cat([parts["a"].flatten(), parts["b"]]), whole)
    torch.testing.assert_close(gradhomog.pipeline("graddrop").combine(rows.double()).float(), whole)
    for columns in (1, 7, 16, 33):
        monkeypatch.setattr(_one_sign, "COLUMNS", columns)
        torch.testing.assert_close(gradhomog.pipeline("graddrop").combine(rows), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("held", [0, 10**6])  # row by row, and all rows of a block at once
@pytest.mark.parametrize(("tasks", "params"), [(1, 1), (2, 3), (3, 50), (16, 203)])
def test_in_blocks_it_is_what_it_is_on_the_whole(monkeypatch, tasks, params, held, dtype):
    monkeypatch.setattr(_one_sign, "COLUMNS", 24)
    monkeypatch.setattr(_one_sign, "LEAST", held)
    rows, direction = normal(tasks, params, dtype=dtype), torch.full((params,), torch.nan, dtype=dtype)
    drop_into(direction, rows, Lots(torch.Generator().manual_seed(5)), sharpness=2.0, divisor=3)
    expected = drop(rows, draw(params, torch.Generator().manual_seed(5)).to(dtype), sharpness=2.0, divisor=3)
    torch.testing.assert_close(direction, expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_reaches_the_direction_and_no_other_coordinate(bad):
    rows = normal(3, 400)
    rows[1, ::2] = bad
    direction = torch.empty(400)
    drop_into(direction, rows, Lots(torch.Generator().manual_seed(0)), sharpness=1.0, divisor=3)
    assert not bool(direction[::2].isfinite().any())
    assert bool(direction[1::2].isfinite().all())


def test_beside_the_direction_it_holds_less_memory_than_that_takes():
    for tasks, params in [(2, 100_000), (16, 100_000), (4, 123_457), (16, 400_000)]:
        rows, homogenizer = normal(tasks, params), OnParameters(Options(0.0, 1.0, "mean"), seed=0)
        assert peak_bytes(lambda h=homogenizer, rows=rows: h.rows(rows)) <= 2 * 4 * params + 1000


def test_every_step_draws_anew():
    pipe, rows = gradhomog.pipeline("graddrop"), normal(3, 100)
    assert not torch.equal(pipe.combine(rows), pipe.combine(rows))


@given(jacobians(tasks=(1, 6)))
def test_what_all_agree_on_is_kept_whole(rows):
    agreeing = rows.abs() * torch.tensor([1.0, -1.0], dtype=rows.dtype).repeat(rows.shape[1])[: rows.shape[1]]
    torch.testing.assert_close(gradhomog.pipeline("graddrop").combine(agreeing), agreeing.mean(0))


@pytest.mark.parametrize("tasks", [3, 16, 100])
def test_where_all_agree_rounding_never_drops(tasks):
    rows = normal(tasks, 3000).abs() * torch.tensor([1.0, -1.0]).repeat(1500)
    for extreme in (-1.0, 1.0):  # 2U − 1 at its ends
        dropped = drop(rows.flip(0), torch.full((3000,), extreme))
        torch.testing.assert_close(dropped, rows.sum(0))
        chosen = _one_sign._drawn(rows.sum(0), rows.flip(0).abs().sum(0), torch.full((3000,), extreme), 1.0, tasks)
        assert torch.equal(chosen.sign(), rows[0].sign())


def test_a_leak_of_one_is_the_mean_and_passes_a_single_task_whole():
    rows = normal(3, 200, dtype=torch.float64)
    torch.testing.assert_close(gradhomog.pipeline("graddrop(leak=1)").combine(rows), rows.mean(0))
    rows[1:] *= 1e-9  # the others are too small to be seen
    rows[1:] -= rows[:1] * 1e-8
    found = gradhomog.pipeline("graddrop(leak=[1, 0, 0], scale='paper')").combine(rows)
    torch.testing.assert_close(found, rows[0], rtol=1e-6, atol=0)


def test_sharp_enough_the_sign_of_the_sum_is_kept_whatever_is_drawn():
    rows = normal(4, 300, dtype=torch.float64)
    expected = torch.where(rows.sum(0) > 0, rows.clamp_min(0).sum(0), rows.clamp_max(0).sum(0))
    for seed in range(3):
        found = gradhomog.pipeline(f"graddrop(sharpness=1e12, scale='paper', seed={seed})").combine(rows)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("leak", [None, torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)])
def test_derivatives_are_those_of_a_fixed_mask(leak):
    rows = normal(3, 6, dtype=torch.float64).requires_grad_()
    lots = draw(6, torch.Generator().manual_seed(3)).double()
    assert torch.autograd.gradcheck(lambda rows: drop(rows, lots, leak), rows)
    assert torch.autograd.gradgradcheck(lambda rows: drop(rows, lots, leak), rows)
    (slope,) = torch.autograd.grad(drop(rows, lots).sum(), rows)
    mask = _one_sign.keep(rows, lots)
    assert torch.equal(slope, mask.double())
    assert 0 < int(mask.sum()) < mask.numel()


def test_the_mathematics_is_batched_and_compiles_whole():
    rows, lots = normal(5, 3, 8), draw(8, torch.Generator().manual_seed(0))
    expected = torch.stack([drop(each, lots) for each in rows])
    assert torch.equal(torch.func.vmap(drop, in_dims=(0, None))(rows, lots), expected)
    assert torch.equal(torch.compile(drop, fullgraph=True, backend="eager")(rows[0], lots), expected[0])


# -- on features -----------------------------------------------------------------------------------------------------


def on_features(features, rows, **options):
    pipe = gradhomog.pipeline([("graddrop", {"on": "features", **options})])
    passed = pipe.transform(features.flatten(1)[None], [TaskKey(0)])
    assert torch.equal(passed[-1], features.flatten(1)[None])
    return pipe.combine({"features": rows})["features"]


def layer_of_the_paper(features, rows, draws, leak=0.0):
    """Algorithm 1 on G_i = Σ_batch sgn(A) ⊙ ∇_A L_i, the mask of each task and feature applied to all of its batch."""
    sums = (features.sign() * rows).sum(1)
    purity = (1 + sums.sum(0) / sums.abs().sum(0)) / 2
    masks = (purity > draws) * (sums > 0) + (purity < draws) * (sums < 0)
    return ((leak + (1 - leak) * masks)[:, None] * rows).sum(0)


@pytest.mark.parametrize("leak", [0.0, 0.4])
def test_on_features_it_is_the_layer_of_the_paper(leak):
    features, rows = normal(5, 2, 3, seed=1), normal(3, 5, 2, 3, seed=2)
    found = on_features(features, rows, scale="paper", leak=leak, seed=4)
    expected = layer_of_the_paper(features.flatten(1), rows.flatten(2), uniform(6, 4), leak)
    assert found.shape == (5, 2, 3)
    torch.testing.assert_close(found.flatten(1), expected)


def test_on_features_tasks_that_agree_are_left_alone_where_a_feature_is_zero_too():
    features, row = normal(5, 4).clamp_min(0), normal(5, 4, seed=1)
    features[:, 2] = 0
    torch.testing.assert_close(on_features(features, row.expand(3, 5, 4)), row)


def test_on_features_derivatives_are_those_of_a_fixed_mask():
    features = normal(4, 3, dtype=torch.float64)

    def direction(rows):
        pipe = gradhomog.pipeline("graddrop(on='features', leak=0.3)")
        pipe.transform(features[None], [TaskKey(0)])
        return pipe.combine({"z": rows}, create_graph=True)["z"]

    rows = normal(2, 4, 3, seed=5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(direction, rows)


@pytest.mark.parametrize(
    ("shown", "rows", "message"),
    [
        (None, normal(2, 6), "none were seen. Use gradhomog.backward with level='features'.* or on='parameters'"),
        (normal(1, 5, 3), normal(2, 15), r"got rows of \[\[2, 15\]\], and of features \[1, 5, 3\] were seen"),
        (normal(2, 5, 3), {"z": normal(2, 5, 3)}, "of one batch that all tasks share"),
        (normal(1, 5, 3), {"z": normal(2, 4, 3)}, "must be 'parameters' where rows are not derivatives"),
        (normal(1, 5, 3), {"z": normal(2, 5, 3), "y": normal(2, 5, 3)}, "must be 'parameters'"),
    ],
)
def test_on_features_rows_that_are_not_by_the_features_seen_are_refused(shown, rows, message):
    pipe = gradhomog.pipeline("graddrop(on='features')")
    if shown is not None:
        pipe.transform(shown, [TaskKey(0)])
    with pytest.raises(OptionError, match=message):
        pipe.combine(rows)


def test_on_features_it_needs_features_that_all_tasks_see_alike():
    pipe, rows = gradhomog.pipeline("graddrop(on='features')"), {"z": normal(2, 5, 3)}
    for slot in (0, 1):
        pipe.transform(normal(1, 5, 3, seed=slot), [TaskKey(slot)])
    with pytest.raises(OptionError, match=r"\[1, 5, 3\] and \[1, 5, 3\], with different signs"):
        pipe.combine(rows)
    pipe.transform(normal(1, 5, 3, seed=7), [TaskKey(0)])  # of a step that was never taken
    for slot in (0, 1):
        pipe.transform(normal(1, 5, 3), [TaskKey(slot)])
    torch.testing.assert_close(pipe.combine(rows)["z"], on_features(normal(5, 3), rows["z"]))


def test_on_features_a_backward_pass_gives_the_trunk_what_the_layer_lets_through():
    torch.manual_seed(0)
    trunk, heads = torch.nn.Linear(4, 6).double(), [torch.nn.Linear(6, 2).double() for _ in range(3)]
    features = trunk(normal(8, 4, dtype=torch.float64)).relu()
    pipe = gradhomog.pipeline("graddrop(on='features', scale='paper', seed=3)")
    views = gradhomog.task_features(features, pipe, tasks=3)
    losses = [head(view).square().mean() for head, view in zip(heads, views, strict=True)]
    slopes = [torch.autograd.grad(loss, features, retain_graph=True)[0] for loss in losses]
    passed = layer_of_the_paper(features.detach(), torch.stack(slopes), uniform(6, 3))
    expected = torch.autograd.grad(features, trunk.weight, passed, retain_graph=True)[0]
    gradhomog.backward(losses, pipe, features=views, level="features")
    torch.testing.assert_close(trunk.weight.grad, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("leak=-0.1", r"`leak` must be in \[0, 1\]"),
        ("leak=[0, 2]", r"`leak` must be in \[0, 1\]; got 2"),
        ("leak=[]", "empty list"),
        ("leak=[0, 1]", "one number per task; got 2 for 3 tasks"),
        ("sharpness=0.5", "`sharpness` must be at least 1"),
        ("sharpness=inf", "`sharpness` must be at least 1 and finite"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(f"graddrop({options})").combine(torch.ones(3, 2))


def test_a_coordinate_without_gradient_has_second_derivatives():
    rows = torch.tensor([[1.0, 0.0], [-2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    direction = gradhomog.pipeline("graddrop").combine(rows, create_graph=True)
    (first,) = torch.autograd.grad(direction.square().sum(), rows, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), rows)
    assert bool(second.isfinite().all())
