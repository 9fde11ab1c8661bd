"""Weights of losses in closed form after one or several steps; random weights; weights before other methods."""

import math

import pytest
import torch

import gradhomog
from tests.plugins.from_losses import weights


def softmax(*exponents):
    """N times the softmax, whose mean is one."""
    return len(exponents) * torch.softmax(torch.tensor(exponents, dtype=torch.float64), dim=0)


def shares(*numbers):
    """The numbers divided by their mean."""
    numbers = torch.tensor(numbers, dtype=torch.float64)
    return numbers / numbers.mean()


def famo(logits, losses):
    """The weights of FAMO for the logits of its tasks and their last losses."""
    return softmax(*(logit - math.log(loss) for logit, loss in zip(logits, losses, strict=True)))


DECREASING = [[7.0, 1.0, 3.0], [1.0, 1.0, 1.0], [0.5, 0.9, 1.3]]
WINDOW = [[8.0, 1.0], [4.0, 1.0], [3.0, 2.0], [2.0, 2.5]]
LOSSES = [0.5, 2.0, 8.0]
LIMITS = "ldc_mtl(penalty=0, lr=0.05, normalization='none'"

# The weights after steps of these losses, which may have names: ([1.0, 2.0], "ab").
CLOSED_FORMS = [
    ("static(weights=[1, 2, 3])", [LOSSES], [0.5, 1, 1.5]),
    ("static(weights=[1, 2, 3], scale='paper')", [LOSSES], [3, 6, 9]),
    ('static(weights={"a": 3, "*": 1})', [(LOSSES, "abc")], [1.8, 0.6, 0.6]),
    ('static(weights={"a": 3, "*": 1})', [(LOSSES, "cba")], [0.6, 0.6, 1.8]),
    # DWA: the exponents are rates L(t−1)/L(t−2), divided by 2; a domain keeps its last two means, a new one has rate 1.
    (
        "dwa(period=1)",
        [([1, 1], "ab"), ([0.5, 0.8], "ab"), ([3, 3], "cd"), ([9, 9, 9], "bca")], softmax(0.4, 0.5, 0.25),
    ),
    ("dwa(period=1)", [([1, 3, 1], "aab"), ([1, 1], "ab"), ([1, 1], "ab")], softmax(0.25, 0.5)),
    ("dwa(period=1)", [[0, 1], [1e-30, 1], [1, 1]], [2, 0]),
    ("dwa(period=1, temperature=1e-320)", [[1, 1], [0.5, 0.9], [0.5, 0.9]], [0, 2]),
    # FAMO: Adam's first step has the length of its rate; a domain is updated from its second occurrence on.
    ("famo", [[0, 1]] * 3, [2, 0]),
    (
        "famo(smoothing=0, lr=0.1, weight_decay=0)",
        [([1, 1], "ab"), ([1, 7], "cd"), ([1, 0.5, 1], "abn")], famo([0.1, -0.1, 0], [1, 0.5, 1]),
    ),
    # The logarithm of a mean is not the mean of logarithms: by the former, the losses of "a" would seem to fall.
    ("famo(weight_decay=0)", [([0.1, 10, 1], "aab")] * 5, famo([0, 0, 0], [0.1, 10, 1])),
    # GO4Align: with one group all weights are equal, with N groups they are inverse losses.
    ("go4align(groups=1)", [LOSSES] * 3, [1, 1, 1]),
    *((f"go4align(groups={groups}, lr=0)", [LOSSES] * 3, shares(2, 0.5, 0.125)) for groups in (3, 9)),
    (
        "go4align(groups=3, lr=0.5)",
        [([1, 2], "ab"), ([1, 1, 1], "ban")], shares(*softmax(-1, -0.5).tolist(), 1),
    ),
    ("go4align(lr=0)", [[5e-324, 1e308]], [2, 0]),
    # LDC-MTL: the penalty gives weight to the task that has fallen least; without it the bound is reached.
    ("ldc_mtl(penalty=0.4)", [[1, 1, 1], [0.5, 0.9, 0.7]], [0.6, 1.8, 0.6]),
    ("ldc_mtl(penalty=0, normalization='none')", [LOSSES], [1, 1, 1]),
    ("ldc_mtl(normalization='log')", [LOSSES], shares(2, 0.5, 0.125)),
    ("ldc_mtl", [LOSSES], shares(2, 0.5, 0.125)),
    (f"{LIMITS})", [[1, 2]] * 200, [1.6, 0.4]),
    (f"{LIMITS}, bound={math.log(3)})", [[1, 2]] * 200, [1.8, 0.2]),
    # ReLoBRaLo: a new domain counts as constant and an absent one keeps its state; ratios of losses are at most 1e6.
    (
        "relobralo(alpha=0, rho=1, temperature=1)",
        [([1, 1], "ab"), ([1, 1], "cd"), ([0.5, 7, 2], "anb")], softmax(0.5, 1, 2),
    ),
    ("relobralo(alpha=0, temperature=1)", [[0, 1], [0, 2]], softmax(1, 2)),
    ("relobralo(alpha=0)", [[0, 1], [1e-30, 1]], [2, 0]),
    ("relobralo(alpha=0, temperature=1e6)", [[0, 1], [1, 1]], softmax(1, 1e-6)),
    ("relobralo(alpha=0, temperature=1e6)", [[1, 1e-9], [1e7, 1]], [1, 1]),
    # SoftAdapt: the exponents are rates, of which a new domain has that of a constant loss.
    ("softadapt(beta=2)", DECREASING, softmax(-1, -0.2, 0.6)),
    *(
        ("softadapt(variant='normalized', beta=1)", [[unit, unit], [0.7 * unit, 0.9 * unit]], softmax(-0.75, -0.25))
        for unit in (1.0, 1e-9, 1e9)
    ),
    # The parabola through 4, 3, 2 has the derivative −1 at the end; through 1, 2, 2.5 it is 1.5 · 2.5 − 2 · 2 + 0.5.
    (
        "softadapt(variant='loss_weighted', beta=0.5, order=2)",
        WINDOW, shares(3 * math.exp(-0.5), 5.5 / 3 * math.exp(0.125)),
    ),
    ("softadapt", [[1, 3]], [1, 1]),
    ("softadapt(variant='loss_weighted')", [[1, 3]], [0.5, 1.5]),
    ("softadapt(variant='loss_weighted')", [[0, 1], [0, 2]], [0, 2]),
    ("softadapt(variant='loss_weighted')", [[0, 0], [0, 0]], [1, 1]),
    ("softadapt(beta=1, order=2)", [([1, 1], "ab"), ([5], "c"), ([0.5, 9, 1.2], "anb")], softmax(-0.5, 0, 0.2)),
    ("softadapt(beta=1)", [([1, 3, 1], "aab"), ([3, 2, 1], "aab")], softmax(0.5, 0.5, 0)),
    # STCH: a small μ leaves the worst task, a large one the preference; a task without preference has no weight.
    ("stch(mu=1e-9)", [[1, 3, 2, 2.9]], [0, 4, 0, 0]),
    ("stch(mu=1e9, weights=[1, 2, 3, 4])", [[1, 3, 2, 2.9]], [0.4, 0.8, 1.2, 1.6]),
    *(("stch(mu=0.01, weights=[1, 0])", [losses], [2, 0]) for losses in ([1, 1e9], [-1e9, 5], [0, 0])),
    (
        'stch(mu=1, weights={"a": 3}, ideal={"a": 1, "*": 0.5})',
        [([2, 1], "ba")], shares(0.25 * math.exp(0.25 * 1.5), 0.75),
    ),
    # (L/m)^{1/μ} / L; a domain that first occurs after the warm-up uses its first loss as m.
    (
        "stch(log=true, warmup=0, period=1, mu=0.5)",
        [([1, 2], "ab"), ([1, 4], "an"), ([1, 2], "an")], shares(1, 0.5**2 / 2),
    ),
    *((f"stch(mu={mu}, scale='{scale}')", [[1e306, 1e308, 1]], [0, total, 0])
      for mu in (0.1, 1e-3) for scale, total in (("mean", 3), ("paper", 1))),
    # UW: a loss of zero ends at the bound and not at infinity.
    ('uw(kind={"a": "classification", "*": "regression"})', [([1, 3], "ab")], [4 / 3, 2 / 3]),
    *(
        (f"{method}(lr=0.5, bound=2, scale='paper')", [[0, 1]] * 300, [2 * factor * math.exp(2), 2 * factor])
        for method, factor in (("uw", 0.5), ("imtl_l", 1))
    ),
    # UW-SO: the smallest loss has all weight.
    ("uw_so", [[5e-324, 1]], [2, 0]),
    ("uw_so", [[1e308, 1.7e308]], [1, 1]),
    # COSMOS and PBI on the ray of the preference; for large losses COSMOS is the weighted sum.
    *(
        (f"{method}(preferences=[1, 2, 3, 4])", [[factor, 2 * factor, 3 * factor, 4 * factor]], shares(1, 2, 3, 4))
        for method in ("cosmos", "pbi") for factor in (0.1, 0.7, 0)
    ),
    ("cosmos(preferences=[1, 2, 1])", [[9e306, 2e306, 5e306]], [0.75, 1.5, 0.75]),
    # Where the derivative of the sum is negative, and where that of one task is and the others have no preference.
    ("cosmos", [[0.1, 0.3]], [0, 2]),
    ("cosmos(preferences=[1, 0])", [[0, 1]], [2, 0]),
    # The product of the losses overflows.
    ("geometric_mean(scale='paper')", [[1e200, 1e200, 1e180]], [10 ** (-20 / 3), 10 ** (-20 / 3), 10 ** (40 / 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "steps", "expected"), CLOSED_FORMS)
def test_weights_have_their_closed_form(text, steps, expected):
    pipe = gradhomog.pipeline(text)
    for step in steps:
        losses, names = step if isinstance(step, tuple) else (step, None)
        found = weights(pipe, losses, domains=names and [*names])
    expected = torch.as_tensor(expected, dtype=torch.float64)
    if names and "paper" not in text:  # relative to tasks of earlier steps too: tests/step/test_absent_weights.py
        found, expected = found / found.mean(), expected / expected.mean()
    rounding = 1e-3 if "bound=2" in text else 1e-5
    torch.testing.assert_close(found, expected, rtol=rounding, atol=0 if "paper" in text else 1e-6)


def test_random_weights_are_a_function_of_domain_and_seed_within_their_range():
    def weights(seed, domains):
        pipe = gradhomog.pipeline(f"static(weights='random', spread=4, seed={seed})")
        return pipe.homogenize(torch.eye(3, dtype=torch.float64), domains=domains).weights

    first, turned = weights(1, ["a", "b", "c"]), weights(1, ["b", "c", "a"])
    torch.testing.assert_close(first[[1, 2, 0]], turned)
    assert not torch.allclose(first, weights(2, ["a", "b", "c"]))
    assert float(first.max() / first.min()) <= 16


@pytest.mark.parametrize("method", [name for name in gradhomog.available() if "tracked" not in name])
def test_later_homogenizers_see_weighted_losses(method):
    """The direction is that of a caller whose losses, rows and traces of kernels have these weights."""
    pipe = gradhomog.pipeline(method)
    weighted = gradhomog.pipeline(
        f'static(weights={{"a": 100, "*": 1}}, seed=1) + {method}'
    )  # other draws than the method
    if pipe.requirements.attaching or pipe.requirements.transforming or "features" in pipe.requirements.statistics:
        pytest.skip("acts in the network")
    weights = torch.tensor([200 / 101, 2 / 101], dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    for _ in range(3):
        rows = torch.randn(2, 5, generator=random, dtype=torch.float64)
        losses, traces = torch.rand(2, 2, generator=random, dtype=torch.float64) + 0.5
        by_hand = pipe.combine(weights[:, None] * rows, weights * losses, domains="ab", kernel_traces=weights * traces)
        found = weighted.combine(rows, losses, domains="ab", kernel_traces=traces)
        torch.testing.assert_close(found, by_hand, rtol=1e-6, atol=1e-8)
