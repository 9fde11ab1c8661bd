"""The bytes of the process's tensors: each storage once, and none of what only wraps one."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gradhomog.testing.snapshots import tensor_bytes


@pytest.mark.slow
def test_a_storage_counts_once_and_no_more_when_it_is_gone():
    before = tensor_bytes()
    kept = torch.zeros(1000, dtype=torch.float64)
    view = kept.view(10, 100)
    assert tensor_bytes() - before == 8000
    del kept, view
    assert tensor_bytes() == before


@pytest.mark.slow
def test_a_wrapper_that_a_function_transform_left_behind_is_passed_over():
    left = []
    torch.func.vmap(lambda x: (left.append(x), x)[1])(torch.zeros(3, 2))
    assert tensor_bytes() >= 0
    assert len(left) == 1


@pytest.mark.slow
def test_what_a_compiler_stands_in_for_tensors_takes_no_memory_whatever_its_size_is_called():
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.zeros(5, 3))
    before = tensor_bytes()
    assert not isinstance(fake.shape[0], int)
    assert isinstance(before, int)
    del fake
    assert tensor_bytes() == before
