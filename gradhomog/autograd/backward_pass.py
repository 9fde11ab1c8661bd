"""One backward pass through a graph that later passes differentiate again, with errors for graphs that allow one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from gradhomog.errors import OptionError

Gradients = list[Tensor | None]
"""One gradient per tensor, None if the outputs do not depend on it."""

_CACHE_TAG = "without donated buffers"

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_checked: WeakSet[type] = WeakSet()
"""Compiled functions whose backward was observed to leave its saved tensors unchanged; each has a separate type."""

_DISABLE = (
    "Call gradhomog.disable_donated_buffers() at the beginning of the program, or do not compile. Nothing was written. "
    "See docs/guide/compile.md."
)

_REASONS = {
    "donated buffers": "the backward of a torch.compile'd function was compiled for one: it overwrites its saved "
    f"tensors. {_DISABLE} Setting donated_buffer=False alone, as PyTorch's error advises, can give wrong gradients "
    "from PyTorch's caches.",
    "selective activation checkpoint": "a region under selective activation checkpointing can be differentiated once. "
    "Checkpoint without `context_fn`, or use a pipeline with one backward pass, or level='features' if only the shared "
    "part is checkpointed. Nothing was written.",
}
"""Reasons and remedies by a part of PyTorch's error about a second pass."""


def backward_pass(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor] | None, output_grads: Sequence[Tensor], *, retain_graph: bool,
    create_graph: bool = False, compiled: Iterable[Any] = (),
) -> Sequence[Tensor | None]:  # fmt: skip
    """Return Σ over outputs of output_grad · ∂output/∂input, as `torch.autograd.grad` with `allow_unused=True`.

    `inputs`: None to add the gradients of all leaves to their `.grad`; nothing is then returned.
    `compiled`: the nodes of compiled functions in the graph.

    Raises:
        OptionError: a part of the graph can be differentiated only once.
    """
    try:
        with _check_saved_tensors(compiled) if compiled and retain_graph else nullcontext():
            if inputs is None:
                torch.autograd.backward(outputs, output_grads, retain_graph=retain_graph)
                return ()
            return torch.autograd.grad(
                outputs, inputs, output_grads, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True
            )
    except RuntimeError as error:
        reason = next((reason for part, reason in _REASONS.items() if part in str(error)), None)
        if reason is None:
            raise
        raise OptionError(f"the step requires several backward passes, but {reason}") from error


def plain_gradient(leaf: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return the gradient of a plain tensor or parameter as a plain, dense tensor.

    If one leaf belongs to a subclass of Tensor, such as labelled collocation points, `torch.autograd.grad` returns the
    gradients of all leaves in that subclass.
    """
    if gradient is None:
        return None
    if type(gradient) is not Tensor and type(leaf) in (Tensor, nn.Parameter):
        gradient = gradient.as_subclass(Tensor)
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


@contextmanager
def _check_saved_tensors(compiled: Iterable[Any]) -> Iterator[None]:
    """Raise if a compiled function's backward changes its saved tensors; each function is checked once.

    Inductor's cache does not distinguish code that overwrites saved tensors from code that does not (PyTorch 2.13), so
    its own check can pass although the next gradient would be wrong (docs/decisions/0033-compiled-models.md).
    """
    before = {node: _checksums(node.saved_tensors) for node in compiled if type(node) not in _checked}
    changed: list[Any] = []

    def compare(node: Any, input_grads: Any, output_grads: Any) -> None:
        if _checksums(node.saved_tensors) == before[node]:
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
            f"its saved tensors, so that the next gradient would be wrong. {_DISABLE}"
        )


def _checksums(tensors: Iterable[Tensor | None]) -> list[int]:
    """Return the sum of each tensor's bits, read as integers: it does not overflow to NaN, and needs no copy."""
    sums = []
    for tensor in tensors:
        if tensor is not None and tensor.layout == torch.strided:
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            sums.append(int(real.detach().view(_INTEGER_OF_SIZE[real.element_size()]).sum(dtype=torch.int64)))
    return sums


# As in PyTorch's accumulation of gradients; if a version lacks the private method, every gradient is copied.
_use_count: Callable[[Tensor], int] = getattr(Tensor, "_use_count", lambda tensor: 2)


def copy_shared_gradients(gradients: Gradients) -> None:
    """Copy the gradients, in place of the list, that something else holds and that must not become a `.grad`.

    Autograd returns one tensor for two leaves, or views of one, where an operation passes its gradient on; a custom
    function may return a tensor that it keeps, and a hook may have stored it.
    """
    addresses: set[int] = set()
    for index, gradient in enumerate(gradients):
        if gradient is None or gradient.requires_grad:
            continue
        address = gradient.data_ptr()
        if _use_count(gradient) > 1 or sys.getrefcount(gradients[index]) > _REFERENCES or address in addresses:
            gradients[index] = gradient.clone()
        elif address:  # 0 for a tensor without elements
            addresses.add(address)


def _references_in_a_loop() -> int:
    """Return the number of references to a tensor that only a list and the loop variable hold."""
    entries: Gradients = [torch.zeros(())]
    for index, _ in enumerate(entries):
        return sys.getrefcount(entries[index])
    raise AssertionError


_REFERENCES = _references_in_a_loop()


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
    if not functorch_config.donated_buffer and _CACHE_TAG in tag:
        return
    functorch_config.donated_buffer = False
    compiler_config.cache_key_tag = f"{tag} {_CACHE_TAG}".strip()
    torch.compiler.reset()
