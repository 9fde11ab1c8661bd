"""RotoGrad against the paper: weights, rotations, their angles, and a whole step of a trunk in multi-task learning."""

import math

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import DataError, TaskKey
from gradhomog_plugins._rotations.geodesic import haar
from tests.plugins.rows import normal


def keys_of(tasks, domains=None):
    return [TaskKey(slot, domains[slot] if domains else "") for slot in range(tasks)]


def taken(pipe, grads, steps=1, domains=None):
    """Take steps on constant gradients at the heads, with orthonormal rows; return the result of the last."""
    rows = torch.eye(len(grads), dtype=torch.float64)
    for _ in range(steps):
        result = pipe.homogenize(rows, features=[grads] * 2, feature_grads=[grads] * 2, domains=domains)
    return result


def learn(pipe, grads, steps=1, domains=None):
    """Return the weights of the last of several steps."""
    return taken(pipe, grads, steps, domains).weights


def measured(pipe, grads):
    """Return the report of one step."""
    return taken(pipe, grads).measured["rotograd"]


def matrices(pipe, features, tasks, domains=None):
    """R_k, `[tasks, m, m]`."""
    basis = torch.eye(features, dtype=torch.float64).repeat(tasks, 1, 1)
    return pipe.transform(basis, keys_of(tasks, domains))[-1].mT


def weights_of_the_paper(norms, first):
    """C/‖G_k‖ with C = Σ α_k ‖G_k‖, in Python floats."""
    ratios = [norm / initial for norm, initial in zip(norms, first, strict=True)]
    common = sum(ratio / sum(ratios) * norm for ratio, norm in zip(ratios, norms, strict=True))
    return torch.tensor([common / norm for norm in norms], dtype=torch.float64)


def test_slow_tasks_count_more_in_the_common_length():
    directions = nn.functional.normalize(normal(3, 1, 4), dim=-1)
    pipe = gradhomog.pipeline("rotograd(rotation=false)")
    norms = torch.tensor([[4.0, 1.0, 2.0], [1.0, 1.0, 0.5], [0.1, 0.9, 2.5]], dtype=torch.float64)
    for now in norms:
        weights = learn(pipe, directions * now[:, None, None])
        torch.testing.assert_close(weights, weights_of_the_paper(now.tolist(), norms[0].tolist()))
    assert learn(gradhomog.pipeline("rotograd(scale='paper')"), directions).tolist() == pytest.approx([3, 3, 3])


def test_a_task_whose_first_gradient_is_zero_does_not_dominate_later():
    # The published code stores 1e-15 for it, and its share of C is 1 − 1e-14 from then on: that task alone sets C.
    directions = nn.functional.normalize(normal(3, 1, 4), dim=-1)
    asleep = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)[:, None, None]
    pipe = gradhomog.pipeline("rotograd(rotation=false)")
    torch.testing.assert_close(learn(pipe, asleep * directions), torch.tensor([1.5, 0.75, 1.0], dtype=torch.float64))
    awake = torch.tensor([1.0, 1.0, 8.0], dtype=torch.float64)
    torch.testing.assert_close(
        learn(pipe, awake[:, None, None] * directions), weights_of_the_paper([1, 1, 8], [1, 2, 8])
    )


def test_first_norms_are_measured_again_once_after_the_burn_in():
    directions = nn.functional.normalize(normal(2, 1, 4), dim=-1)
    pipe = gradhomog.pipeline("rotograd(rotation=false, burn_in=2)")
    norms = [[1.0, 1.0], [4.0, 1.0], [9.0, 3.0], [5.0, 1.0]]
    first = [norms[0], norms[0], norms[2], norms[2]]
    for now, initial in zip(norms, first, strict=True):
        scaled = torch.tensor(now, dtype=torch.float64)[:, None, None] * directions
        torch.testing.assert_close(learn(pipe, scaled), weights_of_the_paper(now, initial))


def test_without_any_gradient_rows_are_unchanged():
    pipe = gradhomog.pipeline("rotograd")
    assert learn(pipe, torch.zeros(3, 2, 4, dtype=torch.float64)).tolist() == [1, 1, 1]
    assert torch.equal(matrices(pipe, 4, 3), torch.eye(4, dtype=torch.float64).repeat(3, 1, 1))


@pytest.mark.parametrize("earlier", [0, 2])
def test_gradients_with_a_graph_reach_the_direction_in_the_first_step_and_later(earlier):
    rows, state = torch.eye(3, dtype=torch.float64), None

    def direction(grads):
        pipe = gradhomog.pipeline("rotograd")
        if state is not None:
            pipe.load_state_dict(state)
        return pipe.combine(rows, features=grads, feature_grads=grads, create_graph=True)

    if earlier:
        pipe = gradhomog.pipeline("rotograd")
        for step in range(earlier):
            learn(pipe, normal(3, 2, 4, seed=step + 5))
        state = pipe.state_dict()
    assert torch.autograd.gradcheck(direction, (normal(3, 2, 4).requires_grad_(),))


@pytest.mark.parametrize("batch", [1, 5])  # fewer and more samples than half the features: two systems of equations
@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_a_step_goes_down_the_gradient_of_the_papers_loss(variant, batch):
    """The step in the code's coordinates, R e^A, by autograd through the exponential, relative to the mean norm."""
    lr, grads = 1e-6, normal(3, batch, 6, seed=batch) * torch.tensor([1.0, 4.0, 0.2])[:, None, None]
    pipe = gradhomog.pipeline(f"rotograd(lr={lr}, start='haar', variant='{variant}')")
    before = matrices(pipe, 6, 3)
    arriving = grads @ before  # R_kᵀ g̃_k
    norms = grads.flatten(1).norm(dim=1)
    goal = (arriving / norms[:, None, None]).mean(0)
    if variant == "reference":
        goal = goal * arriving.mean(0).norm() / norms.mean()
    learn(pipe, grads)
    for k, after in enumerate(matrices(pipe, 6, 3)):
        lower = torch.zeros(6, 6, dtype=torch.float64, requires_grad=True)
        strict = lower.tril(-1)
        turned = before[k] @ torch.matrix_exp(strict - strict.T)
        loss = -((grads[k] @ turned) * goal).sum() / norms.mean()
        (slope,) = torch.autograd.grad(loss, lower)
        torch.testing.assert_close((before[k].T @ after).tril(-1) / lr, -slope.tril(-1), rtol=1e-4, atol=1e-6)


def test_rotations_start_at_the_identity():
    # In the published code they are Haar-random: the parametrization samples a new matrix.
    features = normal(3, 2, 5)
    assert torch.equal(gradhomog.pipeline("rotograd").transform(features, keys_of(3))[-1], features)
    maps = normal(2, 3, 5, 4, 4)
    assert torch.equal(gradhomog.pipeline("rotograd").transform(maps, keys_of(2))[-1], maps)


def test_a_haar_start_is_a_different_uniform_rotation_for_every_key_and_seed():
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


def test_it_reports_angles_and_cosines_of_whole_batches():
    grads = normal(3, 2, 5)
    pipe = gradhomog.pipeline("rotograd(lr=0.3)")
    learn(pipe, grads, 3)
    turned = matrices(pipe, 5, 3)
    found = measured(pipe, grads)
    for name, vectors in (("before", grads), ("after", grads @ turned)):
        units = nn.functional.normalize(vectors.flatten(1), dim=1)
        assert found[f"feature_cosine_{name}"] == pytest.approx(float((units @ units.T).sum() - 3) / 6)
    chords = (turned - torch.eye(5, dtype=torch.float64)).flatten(1).norm(dim=1)
    assert found["angle"] == pytest.approx((2 * torch.asin(chords / 8**0.5)).tolist())


@pytest.mark.parametrize("shape", [(1, 1), (2, 3)])
def test_repeated_inputs_and_positions_of_maps_make_no_step_longer(shape):
    # The published code sums over the inputs of vectors and averages over those of maps: a factor of the batch.
    grads = normal(2, 4, 3)
    copies = math.prod(shape)
    maps = grads[..., None, None].expand(*grads.shape, *shape)
    found = []
    for given_ in (grads, grads.repeat(1, copies, 1) / copies, maps / copies, 10 * maps):
        pipe = gradhomog.pipeline("rotograd(lr=0.3)")
        learn(pipe, given_, 3)
        found.append(matrices(pipe, 3, 2))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-12)
    features = normal(2, 4, 3, *shape)
    expected = torch.einsum("tij,tqjhw->tqihw", found[2], features)
    torch.testing.assert_close(pipe.transform(features, keys_of(2))[-1], expected)


def test_only_the_first_features_are_rotated():
    grads = normal(2, 8, 6)
    pipe = gradhomog.pipeline("rotograd(size=3, lr=0.5)")
    learn(pipe, grads, 3)
    features = normal(2, 5, 6, seed=1)
    rotated = pipe.transform(features, keys_of(2))[-1]
    assert torch.equal(rotated[..., 3:], features[..., 3:])
    assert float((rotated - features)[..., :3].norm()) > 0.1
    torch.testing.assert_close(rotated.norm(dim=-1), features.norm(dim=-1))
    assert next(iter(pipe)).rotations["0"].shape == (3, 3)


def test_rates_decay_with_the_steps_of_each_rotation():
    grads = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    pipe = gradhomog.pipeline("rotograd(lr=1e-4, decay=0.5)")
    learn(pipe, grads, 20)  # 1 + 1/2 + 1/4 + …, for small rotations
    angle = float(torch.atan2(matrices(pipe, 2, 2)[0, 1, 0], matrices(pipe, 2, 2)[0, 0, 0]))
    assert abs(angle) == pytest.approx(2 * 1e-4 * 0.5, rel=1e-3)


def test_a_step_that_is_too_long_is_halved_until_it_raises_the_alignment():
    grads = normal(2, 1, 5)
    pipe = gradhomog.pipeline("rotograd(lr=1e6, decay=1)")
    cosine = -1.0
    for _ in range(10):
        after = measured(pipe, grads)["feature_cosine_after"]
        assert after >= cosine - 1e-9
        cosine = after
    assert cosine > nn.functional.cosine_similarity(*grads.flatten(1), dim=0) + 0.1


def test_two_tasks_of_one_domain_turn_it_once_by_their_mean_and_in_either_order():
    grads, found = normal(3, 2, 4), []
    for order in ([0, 1, 2], [1, 0, 2]):
        pipe = gradhomog.pipeline("rotograd(lr=0.1, decay=0.5)")
        learn(pipe, grads[order], 2, domains=["a", "a", "b"])
        assert next(iter(pipe)).turns == {"a": 2, "b": 2}
        found.append(matrices(pipe, 4, 2, ["a", "b"]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)
    twice, once = (gradhomog.pipeline("rotograd(pool='task')") for _ in range(2))
    learn(twice, grads[[0, 0, 1, 1]], domains=["a", "a", "b", "b"])
    learn(once, grads[:2], domains=["a", "b"])
    torch.testing.assert_close(matrices(twice, 4, 2, ["a", "b"]), matrices(once, 4, 2, ["a", "b"]), rtol=0, atol=1e-12)


def test_each_half_can_be_switched_off():
    grads = torch.tensor([[[3.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    for options, weights, turned in (
        ("magnitude=false", [1, 1], True), ("rotation=false", [2 / 3, 2], False),
        ("rotation=false, magnitude=false", [1, 1], False), ("magnitude=false, scale='paper'", [2, 2], True),
    ):  # fmt: skip
        pipe = gradhomog.pipeline(f"rotograd({options})")
        assert learn(pipe, grads).tolist() == pytest.approx(weights)
        assert (not torch.equal(matrices(pipe, 2, 2), identity)) is turned
    assert torch.equal(
        gradhomog.pipeline("rotograd(rotation=false, magnitude=false)").combine(torch.eye(2)), torch.eye(2).mean(0)
    )  # and needs no features


def test_features_that_do_not_fit_raise():
    with pytest.raises(DataError, match=r"\[tasks, queries, features\] or .* with 2 tasks; got \(2, 3\)"):
        gradhomog.pipeline("rotograd").transform(torch.zeros(2, 3), keys_of(2))
    with pytest.raises(DataError, match="`size` must be at most the number of features, 3; got 4"):
        learn(gradhomog.pipeline("rotograd(size=4)"), normal(2, 1, 3))
    pipe = gradhomog.pipeline("rotograd")
    learn(pipe, normal(2, 1, 3))
    with pytest.raises(DataError, match="rotograd: the number of features must not change, 3; got 4"):
        pipe.transform(torch.zeros(2, 1, 4), keys_of(2))


def test_one_step_of_the_trunk_is_that_of_the_papers_feature_gradient():
    """C Σ_k U_k backpropagated through trunk and rotations by autograd, in multi-task learning with common inputs."""
    torch.manual_seed(0)
    trunk, inputs = nn.Sequential(nn.Linear(5, 6), nn.Tanh()).double(), normal(7, 5)
    heads = [normal(6, 2, seed=k + 1) * 3**k for k in range(3)]
    pipe = gradhomog.pipeline("rotograd(lr=0.5, scale='paper')")
    first = None
    for _ in range(3):
        features = trunk(inputs)
        taps = pipe.transform(features.expand(3, *features.shape), keys_of(3))
        losses = [(taps[-1][k] @ head).square().mean() for k, head in enumerate(heads)]
        parameters = list(trunk.parameters())
        rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        slopes = [torch.autograd.grad(sum(losses), tap, retain_graph=True)[0] for tap in taps]
        own = [torch.autograd.grad(loss, features, retain_graph=True)[0] for loss in losses]  # G_k
        norms = [float(gradient.norm()) for gradient in own]
        first = first or norms
        weights = weights_of_the_paper(norms, first)
        feature_gradient = sum(weight * gradient for weight, gradient in zip(weights, own, strict=True))
        expected = torch.autograd.grad(features, parameters, feature_gradient)
        found = pipe.combine(
            {str(index): torch.stack(parts) for index, parts in enumerate(zip(*rows, strict=True))},
            features=[tap.detach() for tap in taps], feature_grads=slopes,
        )  # fmt: skip
        for index, (parameter, gradient) in enumerate(zip(parameters, expected, strict=True)):
            torch.testing.assert_close(found[str(index)], gradient, rtol=1e-9, atol=1e-12)
            parameter.data -= 0.01 * gradient
    assert float(matrices(pipe, 6, 3).sub(torch.eye(6)).norm()) > 0.05  # with rotations other than the identity
