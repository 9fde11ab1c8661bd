"""Several backward passes through a compiled function, which may overwrite the tensors that its forward pass saved."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

from gradhomog.autograd.recomputed_modules import checksums
from gradhomog.errors import OptionError

_CACHE_TAG = "without donated buffers"

_checked: WeakSet[type] = WeakSet()
"""Compiled functions whose backward was observed to leave its saved tensors unchanged; each has a separate type."""

DISABLE = (
    "Call gradhomog.disable_donated_buffers() at the beginning of the program, or do not compile. Nothing was written. "
    "See docs/guide/compile.md."
)


@contextmanager
def check_saved_tensors(compiled: Iterable[Any]) -> Iterator[None]:
    """Raise if a compiled function's backward changes its saved tensors; each function is checked once.

    Inductor's cache does not distinguish code that overwrites saved tensors from code that does not (PyTorch 2.13), so
    its own check can pass although the next gradient would be wrong (docs/decisions/0033-compiled-models.md).
    """
    before = {node: checksums(node.saved_tensors) for node in compiled if type(node) not in _checked}
    changed: list[Any] = []

    def compare(node: Any, input_grads: Any, output_grads: Any) -> None:
        if checksums(node.saved_tensors) == before[node]:
            _checked.add(type(node))
        else:
            changed.append(node)

    handles = [node.register_hook(partial(compare, node)) for node in before]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if changed:
        raise OptionError(
            "the step requires several backward passes, but the first one through a torch.compile'd function overwrote "
            f"its saved tensors, so that the next gradient would be wrong. {DISABLE}"
        )


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
    import torch
    import torch._functorch.config as functorch_config
    import torch.compiler.config as compiler_config

    tag = compiler_config.cache_key_tag
    if not functorch_config.donated_buffer and _CACHE_TAG in tag:
        return
    functorch_config.donated_buffer = False
    compiler_config.cache_key_tag = f"{tag} {_CACHE_TAG}".strip()
    torch.compiler.reset()
