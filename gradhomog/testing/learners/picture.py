"""All of a learner that others hold on to or rely on, taken at one moment, to be compared with what it is later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.learners import Learner
from gradhomog.testing.checking import CheckFailure
from gradhomog.testing.generators import positions

Picture = Mapping[str, object]
"""Plain values by what a message calls them."""

_GONE = object()  # equal to nothing else
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _modules(made: Learner) -> dict[str, nn.Module]:
    """All that has parameters and buffers, by the first word of their names."""
    return {"encoder": made.encoder, "head": made.head, "learner": made.own}


def picture(made: Learner, outer: torch.optim.Optimizer | None = None) -> Picture:
    """Parameters, buffers, gradients, modes, hooks, the optimizer, global generators and switches."""
    found: dict[str, object] = {}
    for part, module in _modules(made).items():
        for name, parameter in module.named_parameters():
            key = f"{part}.{name}"
            found[f"the parameter `{key}`"] = _bits(parameter)
            found[f"the identity of the parameter `{key}`"] = id(parameter)
            found[f"`.grad` of `{key}`"] = None if parameter.grad is None else _bits(parameter.grad)
            found[f"`requires_grad` of `{key}`"] = parameter.requires_grad
        for name, buffer in module.named_buffers():
            found[f"the buffer `{part}.{name}`"] = _bits(buffer)
        found[f"the hooks and attributes of the {part}"] = _anatomy(module)
        found[f"the modes of the {part}"] = [one.training for one in module.modules()]
    if outer is not None:
        found["the outer optimizer"] = _plain(outer.state_dict())
    for name, position in positions().items():
        found[f"the global generator of {name}"] = position
    found["the gradient mode"] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    found["the default dtype"] = torch.get_default_dtype()
    return found


def compare(before: Picture, after: Picture, when: str) -> None:
    """Raise unless nothing has changed."""
    names = dict.fromkeys([*before, *after])
    if changed := [name for name in names if before.get(name, _GONE) != after.get(name, _GONE)]:
        more = f" (and {len(changed) - 4} more)" if len(changed) > 4 else ""
        raise CheckFailure(f"{when}, not as before: {', '.join(changed[:4])}{more}")


@contextmanager
def unchanged(made: Learner, when: str, outer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Raise unless what is done within the context, should it end well, leaves the learner as it was."""
    before = picture(made, outer)
    yield
    compare(before, picture(made, outer), when)


def _bits(tensor: Tensor) -> tuple[object, ...]:
    return (
        str(tensor.dtype),
        tuple(tensor.shape),
        tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes(),
    )


def _anatomy(module: nn.Module) -> list[object]:
    return [
        (name, type(one), sorted(vars(one)), [len(getattr(one, kind)) for kind in HOOKS])
        for name, one in module.named_modules()
    ]


def _plain(value: Any) -> object:
    if isinstance(value, Tensor):
        return _bits(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
