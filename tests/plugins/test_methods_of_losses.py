"""Methods that weight tasks by their losses against recursions written out, other libraries, and torch's optimizers."""

import pytest
import scipy.stats
import torch
import torchjd.scalarization

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins.rlw import draw_weights
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses, weights


def identity(point):
    return point


# -- DWA, FAMO, GO4Align ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("period", "temperature"), [(1, 2.0), (4, 2.0), (4, 0.3)])
def test_over_five_epochs_every_direction_of_dwa_is_the_gradient_of_torchjds_loss(period, temperature):
    generator = torch.Generator().manual_seed(period)
    theirs = torchjd.scalarization.DWA(temperature)
    pipe = gradhomog.pipeline(f"dwa(period={period}, temperature={temperature}, scale='paper')")
    for _ in range(5):
        for _ in range(period):
            losses = torch.rand(3, generator=generator, dtype=torch.float64) + 0.1
            found = pipe.combine(torch.eye(3, dtype=torch.float64), losses)
            torch.testing.assert_close(found, gradient_of(theirs, identity, losses), rtol=1e-12, atol=0)
        theirs.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_smoothing_a_full_batch_gives_the_directions_of_torchjds_famo(weight_decay):
    theta, losses_of = quadratics()
    lowest = torch.tensor([0.1, 0.2, 0.0, 0.3], dtype=torch.float64)
    theirs = torchjd.scalarization.FAMO(4, lowest, lr=0.05, weight_decay=weight_decay).double()
    options = f"smoothing=0, lr=0.05, weight_decay={weight_decay}, lowest=[0.1, 0.2, 0, 0.3]"
    pipe = gradhomog.pipeline(f"famo({options})")
    for _ in range(30):
        rows, losses = rows_and_losses(losses_of, theta)
        expected = gradient_of(theirs, losses_of, theta)
        torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=1e-6, atol=1e-8)  # their 1e-8 in D
        theta = theta - 0.02 * expected
        theirs.update(losses_of(theta))


def test_with_noise_between_the_batches_smoothing_brings_the_weights_of_famo_near_to_the_papers():
    # Noise ten times as large as the decreases. In the paper it cancels: both evaluations are on one batch.
    decreases = torch.tensor([0.01, 0.005], dtype=torch.float64)
    noise = 0.05 * torch.randn(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    paper = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([paper], lr=0.025)
    pipes = {smoothing: gradhomog.pipeline(f"famo(smoothing={smoothing}, weight_decay=0)") for smoothing in (0, 0.9)}
    for step, epsilon in enumerate(noise):
        paper.grad = torch.autograd.grad(torch.softmax(paper, 0), paper, decreases)[0]
        optimizer.step()
        for pipe in pipes.values():
            pipe.combine(torch.eye(2), (epsilon - step * decreases).exp())
    preferred = {}  # difference of the logits of the second task, which falls more slowly, and the first
    for smoothing, pipe in pipes.items():
        logits = next(iter(pipe)).logits
        preferred[smoothing] = logits["1"][0] - logits["0"][0]
    expected = float(paper.detach().diff())
    assert 0 < preferred[0] < 0.3 * expected
    assert 0.6 * expected < preferred[0.9] < 1.1 * expected


@pytest.mark.parametrize("count", [1, 2, 6])
def test_every_step_of_go4align_is_the_authors_recursion_with_the_best_groups(count):
    pipe = gradhomog.pipeline("go4align(lr=0.3, scale='paper')")
    shares = torch.full((4,), 0.25, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        losses = torch.rand(4, generator=generator, dtype=torch.float64) + 0.1
        found = weights(pipe, losses)
        shares = shares * torch.exp(-0.3 * losses)
        shares = shares / shares.sum()
        indicators = losses.sum() / losses * shares
    # Two groups of four numbers on a line: the three largest, the two largest, or the largest alone.
    order = indicators.argsort()
    candidates = []
    for cut in (1, 2, 3):
        means = torch.empty(4, dtype=torch.float64)
        for members in (order[:cut], order[cut:]):
            means[members] = indicators[members].mean()
        candidates.append((float((means - indicators).square().sum()), means))
    torch.testing.assert_close(found / 4, min(candidates, key=lambda pair: pair[0])[1])


def test_the_limit_of_the_papers_scale_is_that_of_the_weights_of_groups():
    # γ of the second task exceeds 1e30, the mean of all three does not.
    losses = [1.0, 4e-31, 1.0]
    found = gradhomog.pipeline("go4align(groups=1, lr=0, scale='paper')").combine(torch.eye(3), losses)
    expected = 1 / 3 * sum(losses) * sum(1 / loss for loss in losses) / 3
    assert found.tolist() == pytest.approx([expected] * 3)
    with pytest.raises(OptionError, match=r"p ΣL / L, averaged by group, must be at most .*task 1"):
        weights("go4align(groups=2, lr=0, scale='paper')", losses)


# -- LDC-MTL and uncertainty weighting, with their own Adam ----------------------------------------------------------


def authors_loss(logits, losses, first, penalty, normalization):
    """The one loss that model and weights descend, as in the authors' code with a softmax of free parameters."""
    normalized = {"initial": losses / first, "log": (losses / first).log(), "none": losses}[normalization]
    weighted = torch.softmax(logits, dim=0) * normalized
    return weighted.sum() + penalty * (weighted[:-1] - weighted[1:]).abs().sum()


@pytest.mark.parametrize("normalization", ["initial", "log", "none"])
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_twenty_steps_of_ldc_mtl_follow_the_authors_loss_with_a_separate_adam(normalization, penalty):
    theta, losses_of = quadratics()
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.02)
    text = f"ldc_mtl(penalty={penalty}, lr=0.02, bound=69, normalization='{normalization}', scale='paper')"
    pipe, first = gradhomog.pipeline(text), None
    for _ in range(20):
        rows, losses = rows_and_losses(losses_of, theta)
        first = losses if first is None else first

        def combined(values, logits=logits, first=first):
            return authors_loss(logits, values, first, penalty, normalization)

        found = pipe.combine(rows, losses)
        torch.testing.assert_close(found, gradient_of(combined, losses_of, theta), rtol=1e-6, atol=1e-9)
        optimizer.zero_grad()
        combined(losses).backward()
        optimizer.step()
        theta = theta - 0.05 * found


@pytest.mark.parametrize("names", ["abcdefghijkl", None])
def test_neighbours_in_ldc_mtl_are_in_the_order_of_their_names_or_slots(names):
    pipes = [gradhomog.pipeline("ldc_mtl(penalty=0.4, lr=0.1)") for _ in range(2)]
    order = [11, 2, 0, 10, 1, 5, 4, 3, 9, 8, 7, 6]
    for seed in range(3):
        losses = torch.rand(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
        expected = weights(pipes[0], losses, domains=names and [*names])
        given = {"slots": order} if names is None else {"domains": [names[i] for i in order]}
        torch.testing.assert_close(weights(pipes[1], losses[order], **given), expected[order])


def test_the_form_of_uw_for_classification_moves_by_its_own_derivative():
    losses = torch.tensor([0.2, 1.0, 7.0], dtype=torch.float64)
    variances = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([variances], lr=0.1)
    pipe = gradhomog.pipeline("uw(kind='classification', lr=0.1, scale='paper')")
    for _ in range(10):
        torch.testing.assert_close(weights(pipe, losses) / 3, (-variances).exp().detach(), rtol=1e-9, atol=0)
        optimizer.zero_grad()
        ((-variances).exp() * losses + variances / 2).sum().backward()
        optimizer.step()


# -- ReLoBRaLo -------------------------------------------------------------------------------------------------------

LOSSES = 0.1 + torch.rand(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def recursion(sequence, alpha, temperature, lookbacks):
    """The weights of every step: ones, then λ̂ of the second step, then averages of λ̂, started again at lookbacks."""

    def balanced(losses, reference):
        return len(losses) * torch.softmax(losses / (temperature * reference), dim=0)

    found = [torch.ones(3, dtype=torch.float64), balanced(sequence[1], sequence[0])]
    for t in range(2, len(sequence)):
        history = balanced(sequence[t], sequence[0]) if lookbacks[t] else found[-1]
        found.append(alpha * history + (1 - alpha) * balanced(sequence[t], sequence[t - 1]))
    return torch.stack(found)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("rho", "lookback"), [(1.0, False), (0.0, True)])
def test_without_chance_every_step_of_relobralo_is_that_of_the_recursion(temperature, rho, lookback):
    pipe = gradhomog.pipeline(f"relobralo(alpha=0.7, rho={rho}, temperature={temperature}, scale='paper')")
    found = torch.stack([weights(pipe, losses) / 3 for losses in LOSSES])
    torch.testing.assert_close(found, recursion(LOSSES, 0.7, temperature, [lookback] * 12))


def test_by_chance_every_step_of_relobralo_is_the_recursion_with_or_without_a_lookback():
    pipe, lookbacks = gradhomog.pipeline("relobralo(alpha=0.7, rho=0.5, temperature=1)"), []
    for t, losses in enumerate(LOSSES):
        found = weights(pipe, losses)
        if t >= 2:
            paths = [recursion(LOSSES[: t + 1], 0.7, 1.0, [None, None, *lookbacks, last])[-1] for last in (False, True)]
            matches = [bool(torch.allclose(found, path, rtol=1e-9)) for path in paths]
            assert sum(matches) == 1
            lookbacks.append(matches[1])
    assert set(lookbacks) == {False, True}


def test_the_unit_of_a_loss_changes_nothing_in_relobralo():
    units = torch.tensor([1e-12, 1.0, 1e12], dtype=torch.float64)
    pipes = [gradhomog.pipeline("relobralo(alpha=0.5, rho=0.5)") for _ in range(2)]
    for losses in LOSSES:
        expected, found = weights(pipes[0], losses), weights(pipes[1], units * losses)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


# -- STCH, COSMOS, PBI -----------------------------------------------------------------------------------------------


def authors_losses(losses, nadir, mu):
    """The scalar that the authors' multi-task code differentiates, in the warm-up and after it, without its 1e-20."""
    if nadir is None:
        return losses.log().sum()
    return mu * ((losses / nadir).log() / mu).exp().sum().log() * len(losses)


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_in_logarithms_every_direction_of_stch_is_the_gradient_of_the_authors_code(mu):
    generator = torch.Generator().manual_seed(0)
    pipe = gradhomog.pipeline(f"stch(log=true, mu={mu}, warmup=2, period=3, scale='paper')")
    theta, losses_of = quadratics()
    average, count, nadir = 0.0, 0, None
    for step in range(15):
        point = theta + 0.1 * torch.randn(6, generator=generator, dtype=torch.float64)
        rows, losses = rows_and_losses(losses_of, point)
        epoch = step // 3
        if epoch == 2:
            average, count = average + losses, count + 1
        elif epoch > 2:
            nadir = average / count

        def combined(values, nadir=nadir):
            return authors_losses(values, nadir, mu)

        torch.testing.assert_close(pipe.combine(rows, losses), gradient_of(combined, losses_of, point))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("method", ["cosmos", "pbi"])
def test_with_a_large_penalty_the_weights_are_torchjds_derivatives_without_the_negative_ones(method, seed):
    losses = torch.rand(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    scalarizations = {"cosmos": torchjd.scalarization.COSMOS, "pbi": torchjd.scalarization.PBI}
    preference = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    theirs = gradient_of(scalarizations[method](5.0, preference), identity, losses)
    assert float(theirs.min()) < 0 < float(theirs.max())
    found = weights(f"{method}(penalty=5, preferences=[1, 2, 3, 4])", losses)
    torch.testing.assert_close(found / 4, theirs.clamp_min(0) / theirs.clamp_min(0).sum(), rtol=1e-6, atol=1e-9)
    paper = weights(f"{method}(penalty=5, preferences=[1, 2, 3, 4], scale='paper')", losses)
    torch.testing.assert_close(paper / 4, theirs.clamp_min(0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("text", ["cosmos(penalty=0.2, preferences={})", "pbi(penalty=0.2, preferences={})",
                                  "stch(weights={})"])  # fmt: skip
def test_preferences_by_domain_follow_the_domain_and_their_factor_changes_nothing(text):
    losses = [1.0, 1.3, 0.8]
    expected = weights(text.format([3, 1, 2]), losses)
    torch.testing.assert_close(weights(text.format([6, 2, 4]), losses), expected)
    by_domain = text.format('{"a": 3, "c": 2, "*": 1}')
    for order in ([0, 1, 2], [2, 0, 1]):
        found = weights(by_domain, [losses[i] for i in order], domains=["abc"[i] for i in order])
        torch.testing.assert_close(found, expected[order])


@pytest.mark.parametrize("losses", [[0.1, 0.3], [0.7, 2.1], [0.3, 0.9], [1.1, 3.3]])
def test_the_rounding_of_float32_losses_does_not_move_them_from_the_ray_of_pbi(losses):
    found = gradhomog.pipeline("pbi(preferences=[1, 3])").homogenize(torch.eye(2), torch.tensor(losses)).weights
    torch.testing.assert_close(found.double(), torch.tensor([0.5, 1.5], dtype=torch.float64), rtol=1e-6, atol=0)


def test_for_small_losses_cosmos_is_the_cosine():
    found = weights("cosmos(preferences=[1, 2, 1])", [9e-300, 2e-300, 5e-300])
    torch.testing.assert_close(found, weights("cosmos(preferences=[1, 2, 1], penalty=1e9)", [9, 2, 5]))


# -- SoftAdapt -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["original", "normalized", "loss_weighted"])
@pytest.mark.parametrize("beta", [0.1, -3.0, 0.0])
def test_losses_near_the_end_of_float64_give_finite_weights_in_softadapt(variant, beta):
    pipe = gradhomog.pipeline(f"softadapt(variant='{variant}', beta={beta})")
    for losses in ([1e307, 1.0, 0.0], [1e300, 1e307, 1e-300]):
        assert float(weights(pipe, losses).sum()) == pytest.approx(3)


def test_differences_of_losses_that_overflow_raise_in_softadapt():
    pipe = gradhomog.pipeline("softadapt(order=5)")
    for step in range(2):
        weights(pipe, [1.0 if step % 2 else 1.7e308, 1.0])
    message = r"softadapt.*: differences of losses must be finite; task 0 has .*Divide the losses"
    with pytest.raises(OptionError, match=message):
        weights(pipe, [1.7e308, 1.0])


# -- random weights --------------------------------------------------------------------------------------------------

DISTRIBUTIONS = ["normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli"]
DRAWS = 2000


def draws(distribution, tasks=4):
    generator = torch.Generator().manual_seed(0)
    return torch.stack([draw_weights(tasks, distribution, generator) for _ in range(DRAWS)])


@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_draw_is_on_the_simplex_and_the_mean_weights_are_equal(distribution, tasks):
    found = draws(distribution, tasks)
    assert float(found.min()) >= 0
    torch.testing.assert_close(found.sum(1), torch.ones(DRAWS, dtype=torch.float64))
    error = found.std(0) / DRAWS**0.5
    assert ((found.mean(0) - 1 / tasks).abs() <= 5 * error + 1e-12).all()


def test_normal_weights_are_distributed_as_torchjds():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        random = torchjd.scalarization.Random()
        theirs = torch.stack([gradient_of(random, identity, torch.zeros(4)) for _ in range(DRAWS)])
    for task in range(4):
        assert scipy.stats.ks_2samp(draws("normal")[:, task], theirs[:, task]).pvalue > 1e-3


def test_dirichlet_weights_are_uniform_on_the_simplex():
    # A component of Dirichlet(1, 1, 1, 1) is Beta(1, 3).
    assert scipy.stats.kstest(draws("dirichlet")[:, 2], scipy.stats.beta(1, 3).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("distribution", "sizes"), [("bernoulli", {1, 2, 3}), ("constrained_bernoulli", {1})])
def test_subsets_are_never_empty_and_have_equal_weights(distribution, sizes):
    found = draws(distribution, tasks=3)
    chosen = (found > 0).sum(1)
    assert set(chosen.tolist()) == sizes
    assert (((found * chosen[:, None]) - (found > 0).double()).abs() < 1e-12).all()
