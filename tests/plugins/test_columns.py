"""GradDrop, AND-mask and SAND-mask: choices entry by entry, against the paper's algorithm and DomainBed's loops."""

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog import OptionError
from gradhomog.experiments.profiling.harness import peak_bytes
from gradhomog.step.step import seeded_generator
from gradhomog.testing import jacobians
from gradhomog_plugins.graddrop import drop
from tests.plugins.rows import both_dtypes, combine_in_tensors
from tests.plugins.rows import normal as float64_normal

normal = functools.partial(float64_normal, dtype=torch.float32)


def uniform(size, seed=0, number=0):
    """U of a step of a pipeline whose homogenizer has this seed."""
    return torch.rand(size, generator=seeded_generator(seed, number))


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


@given(jacobians(), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1.0, 3.0, 50.0]), st.integers(0, 1000))
def test_it_is_algorithm_1_written_out(rows, leak, sharpness, seed):
    pipe = gradhomog.pipeline(f"graddrop(leak={leak}, sharpness={sharpness}, seed={seed}, scale='paper')")
    expected = algorithm_1(rows, uniform(rows.shape[1], seed).double(), leak, sharpness)
    torch.testing.assert_close(pipe.combine(rows), expected, rtol=1e-9, atol=1e-12 * float(rows.abs().max()))


@both_dtypes
def test_the_draw_depends_on_neither_blocks_nor_tensors_nor_precision(dtype):
    rows = normal(3, 10_000)  # three blocks of columns
    expected = algorithm_1(rows, uniform(10_000)) / 3
    found = gradhomog.pipeline("graddrop").combine(rows.to(dtype))
    torch.testing.assert_close(found.float(), expected)
    torch.testing.assert_close(combine_in_tensors(gradhomog.pipeline("graddrop"), rows.to(dtype)).float(), expected)


@pytest.mark.parametrize("sharpness", [1.0, 2.0])
def test_each_sign_is_kept_as_often_as_its_probability(sharpness):
    # Each column is repeated 40,000 times. Of the positive sum p and the negative sum −n, P = p/(p + n).
    columns = torch.tensor([[3.0, 1.0, -1.0, 0.5, 1.0], [-1.0, -1.0, -4.0, -0.3, 2.0], [0.0, 2.0, 1.0, -0.1, 0.5]])
    positive, negative = columns.clamp_min(0).sum(0), columns.clamp_max(0).sum(0)
    purity = positive / (positive - negative)
    probability = (0.5 + sharpness * (purity - 0.5)).clamp(0, 1)
    pipe, repeats = gradhomog.pipeline(f"graddrop(sharpness={sharpness}, scale='paper')"), 40_000
    for _ in range(2):  # another draw in each step
        kept = pipe.combine(columns.repeat(1, repeats)).view(repeats, -1)
        near_positive, near_negative = (kept - positive).abs() < 1e-5, (kept - negative).abs() < 1e-5
        assert (near_positive | near_negative).all()
        deviation = 5 * (probability * (1 - probability) / repeats).sqrt()
        assert ((near_positive.float().mean(0) - probability).abs() <= deviation + 1e-6).all()


@both_dtypes
def test_it_allocates_at_most_twice_the_memory_of_the_direction(dtype):
    for tasks, params in [(2, 100_000), (16, 100_000), (4, 123_457), (16, 400_000)]:
        rows, pipe = normal(tasks, params, dtype=dtype), gradhomog.pipeline("graddrop")
        assert peak_bytes(lambda pipe=pipe, rows=rows: pipe.combine(rows)) <= 2 * rows[0].nbytes + 5000


@pytest.mark.parametrize("tasks", [3, 16, 100])
@pytest.mark.parametrize("extreme", [0.0, 1 - 2**-24])  # the smallest and the largest U in float32
def test_where_all_agree_rounding_never_drops(tasks, extreme):
    rows = normal(tasks, 3000).abs() * torch.tensor([1.0, -1.0]).repeat(1500)
    torch.testing.assert_close(drop(rows, torch.full((3000,), extreme)), rows.sum(0))


# -- on features -----------------------------------------------------------------------------------------------------


def on_features(features, rows, create_graph=False, **options):
    """The direction for rows `[tasks, batch, *features]`, gradients w.r.t. features that all tasks share."""
    shared = features.flatten(1)[None].expand(len(rows), -1, -1)
    pipe = gradhomog.pipeline([("graddrop", {"on": "features", **options})])
    return pipe.combine({"z": rows}, features=shared, create_graph=create_graph)["z"]


def layer_of_the_paper(features, rows, draws, leak=0.0):
    """Algorithm 1 on G_i = Σ_batch sgn(A) ⊙ ∇_A L_i, the mask of each task and feature applied to all of its batch."""
    sums = (features.sign() * rows).sum(1)
    purity = (1 + sums.sum(0) / sums.abs().sum(0)) / 2
    masks = (purity > draws) * (sums > 0) + (purity < draws) * (sums < 0)
    return ((leak + (1 - leak) * masks)[:, None] * rows).sum(0)


@both_dtypes
@pytest.mark.parametrize("leak", [0.0, 0.4])
def test_on_features_it_is_the_layer_of_the_paper(leak, dtype):
    features, rows = normal(5, 2, 3, seed=1, dtype=dtype), normal(3, 5, 2, 3, seed=2, dtype=dtype)
    found = on_features(features, rows, scale="paper", leak=leak, seed=4)
    expected = layer_of_the_paper(features.flatten(1), rows.flatten(2), uniform(6, 4), leak)
    assert found.shape == (5, 2, 3)
    torch.testing.assert_close(found.flatten(1), expected)


def test_on_features_tasks_that_agree_are_unchanged_also_where_a_feature_is_zero():
    features, row = normal(5, 4).clamp_min(0), normal(5, 4, seed=1)
    features[:, 2] = 0
    torch.testing.assert_close(on_features(features, row.expand(3, 5, 4)), row)


@pytest.mark.parametrize(
    ("features", "rows", "message"),
    [
        (normal(2, 5, 3), normal(2, 15), r"got rows \[2, 15\] and features \[2, 5, 3\]"),
        (normal(2, 5, 3), {"z": normal(2, 5, 3)}, "of one batch that all tasks share"),  # other signs
        (normal(1, 5, 3).expand(2, 5, 3), {"z": normal(2, 5, 3), "y": normal(2, 5, 3)}, "must be 'parameters'"),
    ],
)
def test_on_features_rows_that_are_not_gradients_by_shared_features_raise(features, rows, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline("graddrop(on='features')").combine(rows, features=features)


def test_on_features_a_backward_pass_gives_the_trunk_the_masked_gradient():
    torch.manual_seed(0)
    trunk, heads = torch.nn.Linear(4, 6).double(), [torch.nn.Linear(6, 2).double() for _ in range(3)]
    features = trunk(normal(8, 4, dtype=torch.float64)).relu()
    losses = [head(features).square().mean() for head in heads]
    gradients = [torch.autograd.grad(loss, features, retain_graph=True)[0] for loss in losses]
    passed = layer_of_the_paper(features.detach(), torch.stack(gradients), uniform(6, 3))
    expected = torch.autograd.grad(features, trunk.weight, passed, retain_graph=True)[0]
    pipe = gradhomog.pipeline("graddrop(on='features', scale='paper', seed=3)")
    gradhomog.backward(losses, pipe, features=features, level="features")
    torch.testing.assert_close(trunk.weight.grad, expected)


def mask(method, rows, **options):
    return gradhomog.pipeline([(method, options)]).combine(rows)


def domainbed(rows, tau, k=None, rescale=True):
    """`mask_grads` of DomainBed for the rows of one tensor, entry by entry: of the AND-mask without `k`."""
    tasks, masks = len(rows), []
    direction = torch.zeros_like(rows[0])
    for place in range(rows[0].numel()):
        entries = [float(row.flatten()[place]) for row in rows]
        mean = sum(entries) / tasks
        agreement = abs(sum((entry > 0) - (entry < 0) for entry in entries)) / tasks
        if k is None:
            masks.append(float(agreement >= tau))
        else:
            variance = sum((entry - mean) ** 2 for entry in entries) / (tasks - 1)
            masks.append(max(0.0, math.tanh(k / variance * (agreement - tau))))
        direction.view(-1)[place] = masks[-1] * mean
    return direction / (1e-10 + sum(masks) / len(masks)) if rescale else direction


@both_dtypes
@pytest.mark.parametrize("tau", [0.0, 0.2, 0.5, 1.0])
def test_for_one_tensor_rescaling_of_the_and_mask_is_that_of_domainbed(tau, dtype):
    rows = float64_normal(5, 3, 4, dtype=dtype)
    torch.testing.assert_close(mask("and_mask", {"a": rows}, tau=tau, rescale=True)["a"], domainbed(rows, tau))


@both_dtypes
@pytest.mark.parametrize(("tau", "k"), [(0.0, 0.1), (0.3, 1.0), (0.5, 10.0), (0.9, 0.01)])
def test_for_one_tensor_whose_mean_square_is_one_the_sand_mask_is_that_of_domainbed(tau, k, dtype):
    rows = float64_normal(5, 3, 4)
    rows = (rows / rows.square().mean().sqrt()).to(dtype)
    found = mask("sand_mask", {"a": rows}, tau=tau, k=k, rescale=True)["a"]
    torch.testing.assert_close(found, domainbed(rows, tau, k))


@both_dtypes
def test_k_is_in_units_of_the_inverse_mean_square_of_all_entries(dtype):
    rows = {"a": 100 * float64_normal(4, 6, dtype=dtype), "b": float64_normal(4, 3, 5, seed=1, dtype=dtype)}
    square = float(torch.cat([value.flatten() for value in rows.values()]).square().mean())
    found = mask("sand_mask", rows, tau=0.2, k=0.7)
    for name, value in rows.items():
        torch.testing.assert_close(found[name], domainbed(value, 0.2, 0.7 * square, rescale=False))


@given(jacobians(tasks=(1, 6)), st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.6, 1.0]))
def test_without_rescaling_the_mean_is_kept_where_enough_signs_agree(rows, tau):
    balance = ((rows > 0).sum(0) - (rows < 0).sum(0)).abs().double() / len(rows)
    expected = torch.where(balance >= tau, rows.mean(0), 0.0)
    torch.testing.assert_close(mask("and_mask", rows, tau=tau), expected)


@pytest.mark.parametrize("tasks", [*range(1, 8), 10, 30])
def test_a_threshold_that_is_a_share_of_the_tasks_includes_this_share(tasks):
    # 0.1 · 30 is above 3 in floating point.
    rows = torch.ones(tasks, tasks + 1)
    for negative in range(tasks + 1):
        rows[:negative, negative] = -1
    for count in range(tasks + 1):
        kept = mask("and_mask", rows + 0.0, tau=count / tasks) != 0
        shares = (tasks - 2 * torch.arange(tasks + 1)).abs()
        assert torch.equal(kept, (shares >= count) & (shares > 0))


@pytest.mark.parametrize("text", ["and_mask({})", "sand_mask(k=0.3{})"])
def test_rescaling_over_all_parameters_does_not_depend_on_their_division_into_tensors(text):
    rows, pipe = float64_normal(3, 40), gradhomog.pipeline(text.format(", rescale=true").replace("(, ", "("))
    torch.testing.assert_close(combine_in_tensors(pipe, rows), pipe.combine(rows))
    plain = gradhomog.pipeline(text.format("")).combine(rows)
    torch.testing.assert_close(pipe.combine(rows), plain * 40 / (plain / rows.mean(0)).sum())


@pytest.mark.parametrize("rescale", [False, True])
def test_coordinates_without_gradient_do_not_change_the_length(rescale):
    rows = torch.tensor([2.0, 0.0, -1.0, 0.0]).expand(3, 4)
    torch.testing.assert_close(mask("and_mask", rows, rescale=rescale), rows[0])
    torch.testing.assert_close(mask("and_mask", rows, tau=0, rescale=rescale), rows[0])


@pytest.mark.parametrize(("method", "options"), [("and_mask", {}), ("sand_mask", {"k": 1e3})])
@pytest.mark.parametrize("size", [1e-40, 2e38, -2e38])
def test_rows_near_the_ends_of_float32_have_finite_directions(method, options, size):
    rows = torch.tensor([[1.0, 1.5], [1.5, 1.5]]) * size
    expected = torch.tensor([1.25, 1.5]) * size  # both masks are one up to float32
    torch.testing.assert_close(mask(method, rows, **options), expected, rtol=1e-3, atol=0)
