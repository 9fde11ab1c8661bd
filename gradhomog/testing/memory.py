"""How much memory the tensors of the process take."""

from __future__ import annotations

import gc

import torch
from torch import Tensor


def tensor_bytes() -> int:
    """Bytes of the storages of all strided tensors that Python knows, each storage once; rubbish is collected first."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        # isinstance() would call the properties of lazy proxies
        if issubclass(type(found), Tensor) and found.layout == torch.strided:
            try:
                storage = found.untyped_storage()
            except NotImplementedError:  # the wrapper of a function transform, kept by somebody's traceback
                continue
            if storage.device.type != "meta":  # a compiler's stand-ins, whose sizes may be symbols, take none
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())
