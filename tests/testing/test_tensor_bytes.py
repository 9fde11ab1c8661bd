"""`tensor_bytes` counts each storage once and ignores wrappers and fake tensors."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gradhomog.testing.snapshots import tensor_bytes


@pytest.fixture(autouse=True)
def without_older_objects():
    """Exclude the objects that exist now: a count takes milliseconds instead of a second."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_storage_counts_once_and_only_while_it_exists():
    before = tensor_bytes()
    kept = torch.zeros(1000, dtype=torch.float64)
    view = kept.view(10, 100)
    assert tensor_bytes() - before == 8000
    del kept, view
    assert tensor_bytes() == before


def test_wrappers_of_function_transforms_and_fake_tensors_with_symbolic_sizes_are_ignored():
    kept, wrappers = torch.zeros(3, 2), []
    before = tensor_bytes()
    torch.func.vmap(lambda x: (wrappers.append(x), x)[1])(kept)
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(kept)
    assert (len(wrappers), isinstance(fake.shape[0], int)) == (1, False)
    assert tensor_bytes() == before
