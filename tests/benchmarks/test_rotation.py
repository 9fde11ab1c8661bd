"""The benchmark of rotations: a complete update of homogenizers, and peers whose matrices stay orthogonal."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks.rotation import BENCHMARK, Update
from tests.benchmarks.rotation_inputs import draw
from tests.benchmarks.rotation_peers import MAPS, OrthogonalLayers


@pytest.mark.parametrize("name", MAPS)
def test_rotations_of_a_peer_start_at_the_identity_stay_orthogonal_and_decrease_the_objective(name):
    torch.manual_seed(0)
    given = draw((3, 5, 8), 0)
    peer = OrthogonalLayers(3, 8, name)
    for matrix in peer.matrices():
        torch.testing.assert_close(matrix, torch.eye(8), rtol=0, atol=1e-6)
    before = peer.objective(given.gradients).item()
    for _ in range(8):
        matrices = [matrix.detach() for matrix in peer.matrices()]
        gradients = peer(given)
        # z̃ = R z, so the gradient w.r.t. z is Rᵀ times that w.r.t. z̃; as rows, g̃ R.
        expected = torch.stack([g @ matrix for g, matrix in zip(given.gradients, matrices, strict=True)])
        torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-6)
    assert peer.objective(given.gradients).item() < before
    for matrix in peer.matrices():
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(8), rtol=0, atol=1e-5)


def test_an_update_returns_gradients_before_the_rotation_and_passes_detached_features(calls):
    given = draw((3, 5, 8), 0)
    found = Update("recording", 3)(given)
    torch.testing.assert_close(found, 2 * given.gradients)
    assert calls == ["transform", ("update", False, (3, 5, 8))]


def test_the_table_has_homogenizers_and_peers(calls):
    found = BENCHMARK(["recording", "recording(factor=3.0)"], [(2, 3, 4), (2, 3, 5)], rounds=3, seconds=60)
    assert [one.table.title.split(",")[0] for one in found] == [
        "one update of 2 rotations of 4 features", "one update of 2 rotations of 5 features",
    ]  # fmt: skip
    labels = [row.label for row in found[0].table.rows]
    assert labels[:2] == ["recording", "recording(factor=3.0)"]
    assert labels[2:] == [f"torch orthogonal, {name}" for name in MAPS]
    assert all(row.seconds.n == 3 for row in found[0].table.rows)
    assert found[0].table.rows[2].ratio.median == 1.0
