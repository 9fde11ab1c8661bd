"""`tensor_bytes` counts each storage once and ignores wrappers and fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gradhomog.testing.snapshots import tensor_bytes


@pytest.mark.slow
def test_a_storage_counts_once_and_only_while_it_exists():
    before = tensor_bytes()
    kept = torch.zeros(1000, dtype=torch.float64)
    view = kept.view(10, 100)
    assert tensor_bytes() - before == 8000
    del kept, view
    assert tensor_bytes() == before


@pytest.mark.slow
def test_a_wrapper_of_a_function_transform_is_ignored():
    wrappers = []
    torch.func.vmap(lambda x: (wrappers.append(x), x)[1])(torch.zeros(3, 2))
    assert tensor_bytes() >= 0
    assert len(wrappers) == 1


@pytest.mark.slow
def test_fake_tensors_with_symbolic_sizes_count_zero_bytes():
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.zeros(5, 3))
    before = tensor_bytes()
    assert not isinstance(fake.shape[0], int)
    assert isinstance(before, int)
    del fake
    assert tensor_bytes() == before
