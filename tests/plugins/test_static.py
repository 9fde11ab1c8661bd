"""Fixed weights at random, and before other homogenizers; by slot and by domain: `test_weights_of_losses.py`."""

import pytest
import torch

import gradhomog


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
