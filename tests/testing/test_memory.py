"""The bytes of the process's tensors: each storage once, and none of what only wraps one."""

from __future__ import annotations

import torch

from gradhomog.testing.memory import tensor_bytes


def test_a_storage_counts_once_and_no_more_when_it_is_gone():
    before = tensor_bytes()
    kept = torch.zeros(1000, dtype=torch.float64)
    view = kept.view(10, 100)
    assert tensor_bytes() - before == 8000
    del kept, view
    assert tensor_bytes() == before


def test_a_wrapper_that_a_function_transform_left_behind_is_passed_over():
    left = []
    torch.func.vmap(lambda x: (left.append(x), x)[1])(torch.zeros(3, 2))
    assert tensor_bytes() >= 0
    assert len(left) == 1
