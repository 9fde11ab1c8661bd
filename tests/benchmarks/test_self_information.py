"""The benchmark of self-information: peers compared with the definition at each position."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from tests.benchmarks.self_information import BENCHMARK, Attached
from tests.benchmarks.self_information_peers import concatenated_differences, drop, unfolded_patches


def naive_sums(x, radius, kernel, padding):
    """Kernel sums by their definition: patches of the zero-padded input, position by position."""
    n, _, height, width = x.shape

    def value(image, channel, row, column):
        inside = 0 <= row < height and 0 <= column < width
        return float(x[image, channel, row, column]) if inside else 0.0

    rows, columns = height + 2 * padding - kernel + 1, width + 2 * padding - kernel + 1
    shifts = [(i, j) for i in range(-radius, radius + 1) for j in range(-radius, radius + 1)]
    distances = torch.zeros(n, len(shifts), rows, columns, dtype=torch.float64)
    for image in range(n):
        for index, (i, j) in enumerate(shifts):
            for row in range(rows):
                for column in range(columns):
                    total = 0.0
                    for channel in range(x.shape[1]):
                        for a in range(kernel):
                            for b in range(kernel):
                                r, c = row - padding + a, column - padding + b
                                gap = value(image, channel, r, c) - value(image, channel, r + i, c + j)
                                total += gap * gap
                    distances[image, index, row, column] = total
    return torch.exp(-distances / (2 * distances.mean())).sum(dim=1)


@pytest.mark.parametrize(("radius", "kernel", "padding"), [(1, 3, 1), (2, 2, 0), (1, 1, 0)])
@pytest.mark.parametrize("form", [concatenated_differences, unfolded_patches])
def test_the_form_of_a_peer_equals_the_definition(form, radius, kernel, padding):
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = form(x, radius, kernel, padding)
    torch.testing.assert_close(found, naive_sums(x, radius, kernel, padding), rtol=1e-12, atol=1e-12)


def test_at_equal_self_information_the_drop_probability_is_the_rate():
    outputs, random = torch.ones(50, 8, 10, 10), torch.Generator().manual_seed(0)
    kept = drop(outputs, torch.full((50, 10, 10), 3.0), 0.25, 0.5, random)
    dropped = int((kept == 0).sum())
    assert stats.binomtest(dropped, outputs.numel(), 0.25).pvalue > 1e-3
    assert torch.equal(drop(outputs, torch.rand(50, 10, 10) + 1, 0.0, 0.5, random), outputs)


def test_a_homogenizer_is_attached_only_during_calls_and_begins_in_each_call(calls):
    convolution = torch.nn.Conv2d(2, 3, 3, padding=1)
    x = torch.ones(1, 2, 5, 5)
    attached = Attached("recording", convolution)
    torch.testing.assert_close(attached(x), 2 * convolution(x))
    torch.testing.assert_close(attached(x), 2 * convolution(x))
    torch.testing.assert_close(attached.encoder(x), convolution(x))
    assert calls == ["attach", "begin"] * 2


def test_the_table_has_time_and_memory_of_all_forms(calls):
    (comparison,) = BENCHMARK(["recording"], [(2, 3, 8, 8)], rounds=3, seconds=60)
    found = comparison.table
    assert [row.label for row in found.rows] == ["convolution", "recording", "published form", "unfold form"]
    bare, ours, published, _ = found.rows
    assert published.peak_bytes > ours.peak_bytes > bare.peak_bytes >= 2 * 64 * 8 * 8 * 4
    assert [column.title for column in comparison.columns] == ["to published form", "to unfold form"]
    assert found.title == "self-information on inputs 2x3x8x8, 1 thread"
