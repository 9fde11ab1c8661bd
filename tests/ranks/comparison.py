"""Comparison of the results of several ranks with those of one process."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def assert_close(found: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Compare states and gradients, which contain tensors, numbers, text and None."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, rtol, atol)
    elif isinstance(expected, torch.Tensor | float):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    else:
        assert found == expected


def assert_same_bits(results: Sequence[Any]) -> None:
    """Compare tensors, states and lists of them on all ranks."""
    for other in results[1:]:
        assert_close(other, results[0], rtol=0, atol=0)


def assert_steps_of_one_process(
    processes: Any, case: Callable[..., Any], text: str, sizes: Sequence[int], *arguments: Any, **options: Any
) -> None:
    """Run `case(text, sizes, ...)` in one process and on a rank for each entry of `sizes`; compare all results."""
    (expected,) = processes(case, 1, text, [sum(sizes)], *arguments, **options)
    found = processes(case, len(sizes), text, sizes, *arguments, **options)
    assert_close(found[0], expected)
    assert_same_bits(found)
