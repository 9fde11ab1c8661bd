import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import shichi

import gradhomog
from gradhomog import OptionError
from gradhomog_data.domains.functions import CELL_SPLITS, CELLS, FAMILIES, functions

families = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.slow_after_first
@families
def test_the_target_variance_is_that_of_functions_of_the_domain(family):
    """Compared with 16,000 targets of 8,000 functions and, for simple integrals, with closed forms."""
    domain, random = functions(family), np.random.default_rng(0)
    tasks = [domain.sample("all", random, ways=1, shots=1, queries=1) for _ in range(8_000)]
    targets = torch.cat([torch.cat([task.support_y, task.query_y]) for task in tasks]).double()
    # The relative standard error is below 0.016, except for the exponential, whose fourth moment is large.
    assert domain.target_variance == pytest.approx(float(targets.var()), rel=0.15 if family == "exponential" else 0.06)
    closed = {
        "sinusoid": (5**3 - 0.1**3) / (3 * 4.9) / 2 - (2.55 * np.sin(5) / 5 * 2 / np.pi) ** 2,
        "line": 3 * 25 / 3 + 3,  # E a² E x² + E b²
        "quadratic": 0.0075 * (125 + 6 * 25 / 3 * 3 + 81 / 5) + 3,  # E a² E (x - c)⁴ + E b²
        "step": 16 / 12,
        "exponential": 4 / 3 * shichi(6)[0] / 6,  # E a² E exp(2 r x), with Shi
    }
    assert domain.target_variance == pytest.approx(closed.get(family, domain.target_variance), rel=1e-4)


def test_the_variance_of_noise_is_part_of_the_target_variance():
    assert functions("line", noise=2.0).target_variance == 28 + 4


def test_the_sinusoid_is_that_of_finn_et_al():
    """Amplitude in [0.1, 5], phase in [0, pi]: both are fitted to the support points and predict the query points."""
    domain, random = functions("sinusoid"), np.random.default_rng(0)
    drawn = []
    for _ in range(100):
        task = domain.sample("all", random, ways=1, shots=20, queries=20)
        basis = lambda x: np.concatenate([np.sin(x), np.cos(x)], axis=1)  # noqa: E731
        cosine, sine = np.linalg.lstsq(basis(task.support_x.numpy()), task.support_y.numpy()[:, 0], rcond=None)[0]
        np.testing.assert_allclose(basis(task.query_x.numpy()) @ [cosine, sine], task.query_y.numpy()[:, 0], atol=1e-4)
        drawn.append((np.hypot(cosine, sine), np.arctan2(-sine, cosine)))
    amplitude, phase = np.array(drawn).T
    assert amplitude.min() >= 0.1 - 1e-4
    assert amplitude.max() <= 5 + 1e-4
    assert phase.min() >= -1e-3
    assert phase.max() <= np.pi + 1e-3
    assert abs(amplitude.mean() - 2.55) < 0.5
    assert abs(phase.mean() - np.pi / 2) < 0.35


@families
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_splits_draw_the_first_parameter_from_disjoint_cells(family, seed):
    low, high = FAMILIES[family].ranges[0]
    for split in ("train", "val", "test"):
        first = functions(family).parameters(split, np.random.default_rng(seed))[0]
        cell = min(int((first - low) / (high - low) * CELLS), CELLS - 1)
        assert CELL_SPLITS[cell % len(CELL_SPLITS)] == split


@families
def test_every_split_covers_the_whole_range(family):
    low, high = np.array(FAMILIES[family].ranges).T
    for split in ("train", "val", "test", "all"):
        random = np.random.default_rng(0)
        drawn = np.stack([functions(family).parameters(split, random) for _ in range(400)])
        place = (drawn - low) / (high - low)
        assert np.all(place >= 0)
        assert np.all(place <= 1)
        assert np.all(place.min(axis=0) < 0.07)
        assert np.all(place.max(axis=0) > 0.93)


def test_noise_has_its_standard_deviation_and_does_not_change_inputs_or_function():
    sizes = {"ways": 1, "shots": 2000, "queries": 2000}
    clean, noisy = (
        functions("line", noise=noise).sample("all", np.random.default_rng(1), **sizes) for noise in (0.0, 0.5)
    )
    assert torch.equal(clean.query_x, noisy.query_x)
    for a, b in ((clean.support_y, noisy.support_y), (clean.query_y, noisy.query_y)):
        assert abs((b - a).std().item() - 0.5) < 0.03
        assert abs((b - a).mean().item()) < 0.04


def test_bad_options_raise():
    with pytest.raises(
        OptionError, match=r"variants sinusoid, line.*got 'sinusiod'. Did you mean `functions:sinusoid`"
    ):
        gradhomog.domain("functions:sinusiod")
    with pytest.raises(OptionError, match="got nothing after the name"):
        gradhomog.domain("functions")
