"""`tensor_bytes` counts each storage once and ignores wrappers and fake tensors."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gradhomog.testing.snapshots import tensor_bytes


def test_wrappers_of_function_transforms_and_fake_tensors_with_symbolic_sizes_are_ignored():
    kept, wrappers = torch.zeros(3, 2), []
    before = tensor_bytes()
    torch.func.vmap(lambda x: (wrappers.append(x), x)[1])(kept)
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(kept)
    assert (len(wrappers), isinstance(fake.shape[0], int)) == (1, False)
    assert tensor_bytes() == before
