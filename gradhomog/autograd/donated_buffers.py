"""Disable donated buffers of `torch.compile`, so that a compiled graph allows several backward passes."""

from __future__ import annotations

import torch

CACHE_TAG = "without donated buffers"


def disable_donated_buffers() -> None:
    """Make functions that are compiled from now on allow several backward passes: N passes for N rows.

    Inductor reuses the memory of the tensors that a forward pass saved ("donated buffers") in the backward pass, so
    that a second pass would read overwritten values. Call this at the beginning of a program that compiles a model and
    homogenizes its gradients. It sets `torch._functorch.config.donated_buffer = False`, adds a tag to
    `torch.compiler.config.cache_key_tag`, because the cache on disk does not distinguish the two kinds of code (PyTorch
    2.13), and discards code that was compiled before. Further calls have no effect.

    Cost: a backward pass allocates the memory that it would have reused. Pipelines with one backward pass do not need
    it.

    >>> import gradhomog
    >>> gradhomog.disable_donated_buffers()
    """
    # Imported here: compilation takes a second to import, and most programs do not compile.
    import torch._functorch.config as functorch_config
    import torch.compiler.config as compiler_config

    tag = compiler_config.cache_key_tag
    if not functorch_config.donated_buffer and CACHE_TAG in tag:
        return
    functorch_config.donated_buffer = False
    compiler_config.cache_key_tag = f"{tag} {CACHE_TAG}".strip()
    torch.compiler.reset()
