"""RotoGrad: the lengths and turns of the paper, in both worlds, and faults of the published code that it has not."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradhomog
from gradhomog import ConfigError, DataError, OptionError, Task, TaskKey
from gradhomog.engine.observation import Observation
from gradhomog.evidence import Evidence
from gradhomog_adapters.maml import MAML
from gradhomog_plugins._rotations.matrix import haar
from gradhomog_plugins.rotograd import RotoGrad, equalizing, lengths


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keys_of(tasks, domains=None):
    return [TaskKey(slot, domains[slot] if domains else "") for slot in range(tasks)]


def learn(pipe, cotangents, steps=1, domains=None):
    """Steps on gradients at the heads that do not respond, with orthonormal rows; the weights of the last."""
    rows = torch.eye(len(cotangents), dtype=torch.float64)
    for _ in range(steps):
        found = pipe.homogenize(
            rows, features=[cotangents] * 2, feature_cotangents=[cotangents] * 2, domains=domains
        )  # fmt: skip
    return found.weights


def matrices(pipe, features, tasks, domains=None):
    """R_k, `[tasks, m, m]`."""
    basis = torch.eye(features, dtype=torch.float64).repeat(tasks, 1, 1)
    return pipe.transform(basis, keys_of(tasks, domains))[-1].mT


def weights_of_the_paper(norms, first):
    """C/‖G_k‖ with C = Σ α_k ‖G_k‖, in Python's numbers."""
    ratios = [norm / initial for norm, initial in zip(norms, first, strict=True)]
    common = sum(ratio / sum(ratios) * norm for ratio, norm in zip(ratios, norms, strict=True))
    return torch.tensor([common / norm for norm in norms], dtype=torch.float64)


# -- magnitude --


def test_one_step_of_the_trunk_is_that_of_the_papers_feature_gradient():
    """C Σ_k U_k sent back through trunk and rotations by autograd, in multi-task learning: the same inputs for all."""
    torch.manual_seed(0)
    trunk, inputs = nn.Sequential(nn.Linear(5, 6), nn.Tanh()).double(), draw(7, 5)
    heads = [draw(6, 2, seed=k + 1) * 3**k for k in range(3)]
    pipe = gradhomog.pipeline("rotograd(lr=0.5, scale='paper')")
    first = None
    for _ in range(3):
        features = trunk(inputs)
        taps = pipe.transform(features.expand(3, *features.shape), keys_of(3))
        losses = [(taps[-1][k] @ head).square().mean() for k, head in enumerate(heads)]
        parameters = list(trunk.parameters())
        rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        slopes = [torch.autograd.grad(sum(losses), tap, retain_graph=True)[0] for tap in taps]
        own = [torch.autograd.grad(loss, features, retain_graph=True)[0] for loss in losses]  # G_k: autograd turns back
        norms = [float(gradient.norm()) for gradient in own]
        first = first or norms
        weights = weights_of_the_paper(norms, first)
        feature_gradient = sum(weight * gradient for weight, gradient in zip(weights, own, strict=True))
        expected = torch.autograd.grad(features, parameters, feature_gradient)
        found = pipe.combine(
            {str(index): torch.stack(parts) for index, parts in enumerate(zip(*rows, strict=True))},
            features=[tap.detach() for tap in taps], feature_cotangents=slopes,
        )  # fmt: skip
        for index, (parameter, gradient) in enumerate(zip(parameters, expected, strict=True)):
            torch.testing.assert_close(found[str(index)], gradient, rtol=1e-9, atol=1e-12)
            parameter.data -= 0.01 * gradient
    assert float(matrices(pipe, 6, 3).sub(torch.eye(6)).norm()) > 0.05  # rotations were among it


def test_slow_tasks_count_more_in_the_common_length():
    directions = nn.functional.normalize(draw(3, 1, 4), dim=-1)
    pipe = gradhomog.pipeline("rotograd(rotation=false)")
    norms = torch.tensor([[4.0, 1.0, 2.0], [1.0, 1.0, 0.5], [0.1, 0.9, 2.5]], dtype=torch.float64)
    for now in norms:
        weights = learn(pipe, directions * now[:, None, None])
        torch.testing.assert_close(weights, weights_of_the_paper(now.tolist(), norms[0].tolist()))
    assert learn(gradhomog.pipeline("rotograd(scale='paper')"), directions).tolist() == pytest.approx([3, 3, 3])


@settings(max_examples=20)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5), st.integers(0, 50))
def test_every_scaled_feature_gradient_is_as_long_as_the_others(norms, seed):
    norms = torch.tensor(norms, dtype=torch.float64)
    pipe = gradhomog.pipeline("rotograd(rotation=false)")
    learn(pipe, draw(len(norms), 2, 3, seed=seed))
    cotangents = norms[:, None, None] * draw(len(norms), 2, 3, seed=seed + 1)
    scaled = learn(pipe, cotangents) * cotangents.flatten(1).norm(dim=1)
    torch.testing.assert_close(scaled, scaled.mean().expand_as(scaled))


def test_a_task_whose_first_gradient_is_zero_does_not_take_over_when_it_wakes_up():
    # The published code stores 1e-15 for it, and its share of C is 1 − 1e-14 from then on.
    directions = nn.functional.normalize(draw(3, 1, 4), dim=-1)
    asleep = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)[:, None, None]
    pipe = gradhomog.pipeline("rotograd(rotation=false)")
    torch.testing.assert_close(learn(pipe, asleep * directions), torch.tensor([1.5, 0.75, 1.0], dtype=torch.float64))
    awake = torch.tensor([1.0, 1.0, 8.0], dtype=torch.float64)
    torch.testing.assert_close(
        learn(pipe, awake[:, None, None] * directions), weights_of_the_paper([1, 1, 8], [1, 2, 8])
    )
    published = weights_of_the_paper([1, 1, 8], [1, 2, 1e-15])
    torch.testing.assert_close(published, 8 / awake)  # C = 8, decided by the one task


def test_first_norms_are_taken_anew_once_after_the_burn_in():
    directions = nn.functional.normalize(draw(2, 1, 4), dim=-1)
    pipe = gradhomog.pipeline("rotograd(rotation=false, burn_in=2)")
    norms = [[1.0, 1.0], [4.0, 1.0], [9.0, 3.0], [5.0, 1.0]]
    first = [norms[0], norms[0], norms[2], norms[2]]
    for now, initial in zip(norms, first, strict=True):
        scaled = torch.tensor(now, dtype=torch.float64)[:, None, None] * directions
        torch.testing.assert_close(learn(pipe, scaled), weights_of_the_paper(now, initial))


def test_tasks_of_one_domain_share_a_first_norm_that_follows_the_domain():
    directions = nn.functional.normalize(draw(3, 1, 4), dim=-1)
    size = lambda *norms: torch.tensor(norms, dtype=torch.float64)[:, None, None]  # noqa: E731
    pipe = gradhomog.pipeline("rotograd(rotation=false, key='domain')")
    learn(pipe, size(1, 3, 5) * directions, domains=["a", "a", "b"])
    found = learn(pipe, size(5, 4) * directions[:2], domains=["b", "a"])
    torch.testing.assert_close(found, weights_of_the_paper([5, 4], [5, 2]))


def test_without_any_gradient_rows_are_left_as_they_are():
    pipe = gradhomog.pipeline("rotograd")
    assert learn(pipe, torch.zeros(3, 2, 4, dtype=torch.float64)).tolist() == [1, 1, 1]
    assert torch.equal(matrices(pipe, 4, 3), torch.eye(4, dtype=torch.float64).repeat(3, 1, 1))


# -- rotation --


@pytest.mark.parametrize("batch", [1, 5])  # fewer and more samples than half the features: two systems of equations
@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_a_step_goes_down_the_gradient_of_the_papers_loss(variant, batch):
    """In the coordinates of the code, R e^A: autograd through the exponential, relative to the mean norm."""
    lr, cotangents = 1e-6, draw(3, batch, 6, seed=batch) * torch.tensor([1.0, 4.0, 0.2])[:, None, None]
    pipe = gradhomog.pipeline(f"rotograd(lr={lr}, start='haar', variant='{variant}')")
    before = matrices(pipe, 6, 3)
    arriving = cotangents @ before  # R_kᵀ g̃_k
    norms = cotangents.flatten(1).norm(dim=1)
    goal = (arriving / norms[:, None, None]).mean(0)
    if variant == "reference":
        goal = goal * arriving.mean(0).norm() / norms.mean()
    learn(pipe, cotangents)
    for k, after in enumerate(matrices(pipe, 6, 3)):
        lower = torch.zeros(6, 6, dtype=torch.float64, requires_grad=True)
        strict = lower.tril(-1)
        turned = before[k] @ torch.matrix_exp(strict - strict.T)
        loss = -((cotangents[k] @ turned) * goal).sum() / norms.mean()
        (slope,) = torch.autograd.grad(loss, lower)
        torch.testing.assert_close((before[k].T @ after).tril(-1) / lr, -slope.tril(-1), rtol=1e-4, atol=1e-6)


def test_the_variant_of_the_published_code_is_the_gradient_of_its_own_loss():
    """‖R v − g̃‖² with v times the norm of the mean gradient: the same direction, at every length."""
    cotangents, lr = draw(2, 1, 4), 1e-6
    pipe = gradhomog.pipeline(f"rotograd(lr={lr}, variant='reference')")
    learn(pipe, cotangents)
    norms = cotangents.flatten(1).norm(dim=1)
    goal = cotangents.mean(0).norm() * (cotangents / norms[:, None, None]).mean(0)
    for k, after in enumerate(matrices(pipe, 4, 2)):
        lower = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
        strict = lower.tril(-1)
        loss = (goal @ torch.matrix_exp(strict - strict.T).T - cotangents[k]).square().sum()
        (slope,) = torch.autograd.grad(loss, lower)
        expected = -slope.tril(-1) / 2 / norms.mean() ** 2
        torch.testing.assert_close(after.tril(-1) / lr, expected, rtol=1e-4, atol=1e-6)


def test_rotations_start_at_the_identity():
    # In the published code they are Haar-random: the parametrisation samples where it should keep.
    features = draw(3, 2, 5)
    assert torch.equal(gradhomog.pipeline("rotograd").transform(features, keys_of(3))[-1], features)
    maps = draw(2, 3, 5, 4, 4)
    assert torch.equal(gradhomog.pipeline("rotograd").transform(maps, keys_of(2))[-1], maps)


def test_a_haar_start_is_a_uniform_rotation_of_its_own_for_every_key_and_seed():
    drawn = torch.stack([haar(3, seed) for seed in range(400)])
    torch.testing.assert_close(drawn @ drawn.mT, torch.eye(3, dtype=torch.float64).expand(400, 3, 3))
    torch.testing.assert_close(torch.linalg.det(drawn), torch.ones(400, dtype=torch.float64))
    # Of a uniform unit vector each entry has mean 0 and mean square 1/3 (standard errors 0.029 and 0.015).
    assert float(drawn.mean(0).abs().max()) < 0.12
    assert float((drawn.square().mean(0) - 1 / 3).abs().max()) < 0.06
    pipes = [gradhomog.pipeline(f"rotograd(start='haar', seed={seed})") for seed in (0, 0, 1)]
    one, again, other = (matrices(pipe, 5, 2) for pipe in pipes)
    assert torch.equal(one, again)
    assert float((one[0] - one[1]).norm()) > 0.5 < float((one - other).norm())
    learn(pipes[0], torch.zeros(2, 1, 5, dtype=torch.float64))
    assert torch.equal(matrices(pipes[0], 5, 2), one)


@pytest.mark.parametrize(("start", "pool"), [("identity", "sample"), ("haar", "task")])
def test_the_gradients_that_reach_the_trunk_align(start, pool):
    cotangents = draw(3, 1, 5)
    pipe = gradhomog.pipeline(f"rotograd(lr=0.5, start='{start}', pool='{pool}')")
    learn(pipe, cotangents, 80)
    arriving = nn.functional.normalize((cotangents @ matrices(pipe, 5, 3)).flatten(1), dim=1)
    assert float((arriving @ arriving.T).min()) > 0.999


def test_the_smaller_of_two_gradients_turns_more_slowly():
    cotangents = torch.tensor([[[9.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]], dtype=torch.float64)
    pipe = gradhomog.pipeline("rotograd(lr=0.01)")
    learn(pipe, cotangents, 2)
    large, small = next(iter(pipe)).measured()["angle"]
    assert large / small == pytest.approx(9, rel=1e-2)
    assert large == pytest.approx(0.01 * 9 / 5 * 0.5, rel=1e-2)  # lr · ‖G‖/mean · |a × v|, v = (1/2, 1/2)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3)])
def test_repeated_inputs_and_positions_of_maps_make_no_step_longer(shape):
    # The published code sums over the inputs of vectors and averages over those of maps: a factor of the batch.
    cotangents = draw(2, 4, 3)
    copies = math.prod(shape)
    maps = cotangents[..., None, None].expand(*cotangents.shape, *shape)
    found = []
    for given_ in (cotangents, cotangents.repeat(1, copies, 1) / copies, maps / copies, 10 * maps):
        pipe = gradhomog.pipeline("rotograd(lr=0.3)")
        learn(pipe, given_, 3)
        found.append(matrices(pipe, 3, 2))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-12)
    features = draw(2, 4, 3, *shape)
    expected = torch.einsum("tij,tqjhw->tqihw", found[2], features)
    torch.testing.assert_close(pipe.transform(features, keys_of(2))[-1], expected)


def test_only_the_first_features_are_rotated():
    cotangents = draw(2, 8, 6)
    pipe = gradhomog.pipeline("rotograd(size=3, lr=0.5)")
    learn(pipe, cotangents, 3)
    features = draw(2, 5, 6, seed=1)
    rotated = pipe.transform(features, keys_of(2))[-1]
    assert torch.equal(rotated[..., 3:], features[..., 3:])
    assert float((rotated - features)[..., :3].norm()) > 0.1
    torch.testing.assert_close(rotated.norm(dim=-1), features.norm(dim=-1))
    assert next(iter(pipe)).rotations["0"].matrix.shape == (3, 3)


def test_rates_decay_with_the_steps_of_each_rotation():
    cotangents = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    pipe = gradhomog.pipeline("rotograd(lr=1e-4, decay=0.5)")
    learn(pipe, cotangents, 20)  # 1 + 1/2 + 1/4 + …, on gradients that hardly turn
    angle = float(torch.atan2(matrices(pipe, 2, 2)[0, 1, 0], matrices(pipe, 2, 2)[0, 0, 0]))
    assert abs(angle) == pytest.approx(2 * 1e-4 * 0.5, rel=1e-3)


def test_a_step_far_too_long_is_shortened_until_it_helps():
    cotangents = draw(2, 1, 5)
    pipe = gradhomog.pipeline("rotograd(lr=1e6, decay=1)")
    cosine = -1.0
    for _ in range(10):
        learn(pipe, cotangents)
        assert next(iter(pipe)).measured()["feature_cosine_after"] >= cosine - 1e-9
        cosine = next(iter(pipe)).measured()["feature_cosine_after"]
    assert cosine > nn.functional.cosine_similarity(*cotangents.flatten(1), dim=0) + 0.1


def test_tasks_of_one_domain_share_a_rotation_which_follows_the_domain():
    cotangents, names = draw(3, 2, 4), ["a", "a", "b"]
    pipe = gradhomog.pipeline("rotograd(key='domain', lr=0.5)")
    learn(pipe, cotangents, 2, domains=names)
    found = matrices(pipe, 4, 3, names)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(matrices(pipe, 4, 2, ["b", "a"]), found[[2, 0]])
    learn(pipe, cotangents[:1], domains=["c"])
    assert torch.equal(matrices(pipe, 4, 3, names), found)


@settings(max_examples=12)
@given(exponent=st.integers(-59, 59), seed=st.integers(0, 100))
def test_a_common_factor_of_the_gradients_changes_neither_weights_nor_rotations(exponent, seed):
    cotangents = draw(3, 3, 6, seed=seed).float()
    one, other = (gradhomog.pipeline("rotograd(lr=0.3)") for _ in range(2))
    torch.testing.assert_close(learn(other, cotangents * 2.0**exponent, 2), learn(one, cotangents, 2))
    torch.testing.assert_close(matrices(other, 6, 3), matrices(one, 6, 3))


def test_it_tells_angles_and_cosines_of_whole_batches():
    cotangents = draw(3, 2, 5)
    pipe = gradhomog.pipeline("rotograd(lr=0.3)")
    learn(pipe, cotangents, 3)
    turned = matrices(pipe, 5, 3)
    learn(pipe, cotangents)
    told = next(iter(pipe)).measured()
    for name, vectors in (("before", cotangents), ("after", cotangents @ turned)):
        units = nn.functional.normalize(vectors.flatten(1), dim=1)
        assert told[f"feature_cosine_{name}"] == pytest.approx(float((units @ units.T).sum() - 3) / 6)
    chords = (turned - torch.eye(5, dtype=torch.float64)).flatten(1).norm(dim=1)
    assert told["angle"] == pytest.approx((2 * torch.asin(chords / 8**0.5)).tolist())


# -- halves, shapes, options, state --


def test_each_half_can_be_switched_off():
    cotangents = torch.tensor([[[3.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    for options, weights, turned in (
        ("magnitude=false", [1, 1], True), ("rotation=false", [2 / 3, 2], False),
        ("rotation=false, magnitude=false", [1, 1], False), ("magnitude=false, scale='paper'", [2, 2], True),
    ):  # fmt: skip
        pipe = gradhomog.pipeline(f"rotograd({options})")
        assert learn(pipe, cotangents).tolist() == pytest.approx(weights)
        assert (not torch.equal(matrices(pipe, 2, 2), identity)) is turned
    assert torch.equal(
        gradhomog.pipeline("rotograd(rotation=false, magnitude=false)").combine(torch.eye(2)), torch.eye(2).mean(0)
    )  # and needs nothing to be shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotograd(lr=0)", "`lr` must be positive"),
        ("rotograd(decay=1.5)", r"`decay` must be in \(0, 1\]"),
        ("rotograd(size=0)", "`size` must be at least 1"),
        ("rotograd(burn_in=-1)", "`burn_in` must not be negative"),
        ("rotograd(pool='class')", "pool"),
    ],
)
def test_wrong_options_are_refused_by_name(text, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(text)


def test_features_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match=r"\[tasks, queries, features\] or .* with 2 tasks; got \(2, 3\)"):
        gradhomog.pipeline("rotograd").transform(torch.zeros(2, 3), keys_of(2))
    with pytest.raises(DataError, match="`size` must be at most the number of features, 3; got 4"):
        learn(gradhomog.pipeline("rotograd(size=4)"), draw(2, 1, 3))
    pipe = gradhomog.pipeline("rotograd")
    learn(pipe, draw(2, 1, 3))
    with pytest.raises(DataError, match="rotograd: features must keep their number, 3; got 4"):
        pipe.transform(torch.zeros(2, 1, 4), keys_of(2))


def test_all_that_is_learnt_is_saved():
    # First norms, iteration counts and what the rates have decayed to are not in the published code's state.
    text = "rotograd(lr=0.5, decay=0.7, burn_in=4, start='haar')"
    pipe, fresh = gradhomog.pipeline(text), gradhomog.pipeline(text)
    for step in range(3):
        learn(pipe, draw(3, 2, 5, seed=step))
    fresh.load_state_dict(copy.deepcopy(pipe.state_dict()))
    for step in range(3, 7):
        assert torch.equal(learn(fresh, draw(3, 2, 5, seed=step)), learn(pipe, draw(3, 2, 5, seed=step)))
    assert torch.equal(matrices(fresh, 5, 3), matrices(pipe, 5, 3))
    held = next(iter(pipe))
    with pytest.raises(ConfigError, match="the state of RotoGrad must hold rotations"):
        held.load_state_dict({"first_norms": {}, "gradients_seen": {}})
    with pytest.raises(ConfigError, match="the state of RotoGrad must hold"):
        held.load_state_dict({"rotations": {}})


# -- as functions --


def test_the_weights_differentiate_twice_in_norms_and_gradients():
    gradients, first = draw(3, 2, 4).requires_grad_(), torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)

    def weights(values):
        return equalizing(lengths(values), first)

    assert torch.autograd.gradcheck(weights, (gradients,))
    assert torch.autograd.gradgradcheck(weights, (gradients,))
    beside_zero = torch.cat([gradients.detach()[:2], torch.zeros(1, 2, 4)]).requires_grad_()
    (slope,) = torch.autograd.grad(weights(beside_zero).sum(), beside_zero)
    assert slope.isfinite().all()


def test_cotangents_with_a_graph_reach_the_weights_in_the_first_step_and_later():
    rows, keys = torch.eye(3, dtype=torch.float64), keys_of(3)
    for earlier in (0, 2):
        made = RotoGrad()
        for step in range(earlier):
            shown = draw(3, 2, 4, seed=step + 5)
            made.update(Evidence(Observation(rows, None, keys, [shown], [shown]), {"features"}))

        def weights(cotangents, made=made):
            return made.mix(Evidence(Observation(rows, None, keys, [cotangents], [cotangents]), {"features"}))

        assert torch.autograd.gradcheck(weights, (draw(3, 2, 4).requires_grad_(),))


def test_the_weights_run_over_batches_and_compile_without_a_break():
    norms, first = draw(4, 3).abs(), draw(4, 3, seed=1).abs()
    expected = torch.stack([equalizing(*pair) for pair in zip(norms, first, strict=True)])
    torch.testing.assert_close(torch.func.vmap(equalizing)(norms, first), expected)
    compiled = torch.compile(equalizing, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(norms[0], first[0]), expected[0])


# -- meta-learning --


def test_in_meta_learning_rows_are_those_of_rotated_queries_scaled_by_their_feature_gradients():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    batch = [
        Task(normal(6, 4), torch.arange(6) % 3, normal(9, 4), torch.arange(9) % 3, f"domain {i}") for i in range(3)
    ]
    encoder, head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 3)
    model = MAML(encoder, head, "rotograd(lr=0.5, pool='task')", inner_steps=2, inner_lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = None
    for _ in range(3):
        rows = model.rows(batch)
        norms = rows.feature_cotangents[-1].double().flatten(1).norm(dim=1).tolist()
        first = first or norms
        weights = weights_of_the_paper(norms, first)
        model.step(batch, outer)
        for name, parameter in model.named_parameters().items():
            expected = (weights @ rows.jacobian[name].double().flatten(1)).reshape(parameter.shape) / 3
            torch.testing.assert_close(parameter.grad.double(), expected, rtol=1e-4, atol=1e-6)
    assert min(next(iter(model.homogenizers)).measured()["angle"]) > 0
    bare = MAML(encoder, head, None, inner_steps=2, inner_lr=0.1)
    inputs = batch[0].support_x, batch[0].support_y, batch[0].query_x
    assert torch.equal(model.predict(*inputs), bare.predict(*inputs))
