"""What comes out: shape, dtype, device, structure; no graph that was not asked for."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.comparing import agree
from gradhomog.testing.holding import held
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.searching import for_all
from gradhomog.testing.strategies import jacobians


def _rows(tasks: int, params: int, seed: int = 0) -> Tensor:
    return torch.randn(tasks, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@check("homogenizers")
def finite_for_finite_rows(subject: HomogenizerSubject) -> None:
    """Every finite matrix of rows has a finite direction of its shape and dtype, over two steps.

    Zero, duplicate and opposite rows, one task, norms that differ by six orders of magnitude; float64 and float32.
    """

    @for_all(jacobian=jacobians(), dtype=st.sampled_from([torch.float64, torch.float32]))
    def _(jacobian: Tensor, dtype: torch.dtype) -> None:
        direction = subject.combine(jacobian.to(dtype), steps=2)
        if not isinstance(direction, Tensor) or direction.shape != jacobian.shape[1:] or direction.dtype != dtype:
            found = f"{tuple(direction.shape)} {direction.dtype}" if isinstance(direction, Tensor) else direction
            raise CheckFailure(f"the direction is {found}; expected {tuple(jacobian.shape[1:])} {dtype}")
        if not bool(torch.isfinite(direction).all()):
            raise CheckFailure("the direction is not finite", direction=direction)


@check("homogenizers")
def half_precision(subject: HomogenizerSubject) -> None:
    """Rows of float16 and bfloat16 give the direction of the same rows in float64, up to their precision.

    Also where the sum of a row's squares is more than float16 can hold.
    """
    for dtype, size in itertools.product((torch.float16, torch.bfloat16), (1.0, 100.0)):
        rows = (size * _rows(4, 33, seed=1)).to(dtype)
        expected = subject.combine(rows.double())
        assert isinstance(expected, Tensor)
        what = f"{dtype}, entries of about {size:g}"
        agree(subject.combine(rows), expected.to(dtype), what, rtol=1e-2, atol=1e-2 * size)


@check("homogenizers")
def dict_rows(subject: HomogenizerSubject) -> None:
    """Rows as a dict of tensors `[tasks, *shape]` give the direction of the same rows as one matrix."""
    rows = _rows(4, 18, seed=2)
    parts = {"weight": rows[:, :12].reshape(4, 3, 4), "scalar": rows[:, 12], "bias": rows[:, 13:]}
    direction = subject.combine(parts, steps=2)
    if not isinstance(direction, dict) or {k: v.shape for k, v in direction.items()} != {
        name: value.shape[1:] for name, value in parts.items()
    }:
        raise CheckFailure(f"the direction of a dict of rows must be a dict of the same names and shapes; {direction}")
    whole = subject.combine(rows, steps=2)
    assert isinstance(whole, Tensor)
    found = torch.cat([direction[name].reshape(-1) for name in parts])
    agree(found, whole, "a dict of rows", rtol=1e-9, atol=1e-12, jacobian=rows)


@check("homogenizers")
def devices(subject: HomogenizerSubject) -> None:
    """On every device of this machine the direction is that of the CPU, and lies on the device."""
    others = [name for name, there in (
        ("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available()),
    ) if there]  # fmt: skip
    if not others:
        raise NotApplicable("this machine has no other device than the CPU")
    rows = _rows(4, 33, seed=3).float()
    expected = subject.combine(rows, steps=2)
    assert isinstance(expected, Tensor)
    for device in others:
        found = subject.combine(rows.to(device), steps=2)
        if not isinstance(found, Tensor) or found.device.type != device:
            raise CheckFailure(f"the direction of rows on {device} is not there")
        agree(found.cpu(), expected, device, rtol=1e-4, atol=1e-5)


@check("homogenizers")
def no_graph_unasked(subject: HomogenizerSubject) -> None:
    """Without `create_graph` neither the direction nor anything kept holds on to a graph.

    Also of what it is shown before rows exist, which has one.
    """
    rows = _rows(3, 8).requires_grad_()
    losses = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64, requires_grad=True)
    pipe = subject.pipeline()
    direction = subject.combine(rows, losses=losses, pipe=pipe, steps=2)
    if isinstance(direction, Tensor) and direction.requires_grad:
        raise CheckFailure("the direction requires grad, though create_graph was not asked for")
    before_rows = subject.pipeline()
    subject.lap(before_rows, subject.arena.batch())
    for homogenizer in (*pipe, *before_rows):
        for path, tensor in held(homogenizer, Tensor):
            if tensor.grad_fn is not None:
                raise CheckFailure(
                    f"`{path}` of {type(homogenizer).__name__} holds on to the graph of a step: detach it"
                )
