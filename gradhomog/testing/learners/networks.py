"""Networks of other kinds: with frozen parameters, with batch normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError
from gradhomog.learners import Learner
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.comparing import same
from gradhomog.testing.learners.subject import LearnerSubject
from gradhomog.testing.small_network import WAYS, network


@check("learners")
def frozen_parameters(subject: LearnerSubject) -> None:
    """Parameters with `requires_grad=False` are constants: they have no row, and no step changes them.

    Neither a meta-step nor an inner step: whenever a layer runs, they have their original values. Frozen are one layer,
    one layer after the learner was made, and the whole encoder; a learner may refuse this by a `GradhomogError`.
    """
    for what, late in (("encoder.0", False), ("encoder.0", True), ("encoder", False)):
        encoder, head = network(0, subject.targets or WAYS)
        layer = encoder if what == "encoder" else encoder.get_submodule("0")
        try:
            if not late:
                layer.requires_grad_(False)
            made = subject.make(encoder, head)
            layer.requires_grad_(False)
            rows = made.rows(subject.batch()).jacobian
        except GradhomogError:
            continue  # a refusal
        when = f"with `{what}` frozen{' after the learner was made' if late else ''}"
        if frozen := [name for name in rows if name.startswith(f"{what}.")]:
            raise CheckFailure(f"{when}, there are rows of {', '.join(frozen)}")
        _require_constant(subject, made, layer, when)


def _require_constant(subject: LearnerSubject, made: Learner, layer: nn.Module, when: str) -> None:
    before = {name: value.clone() for name, value in layer.named_parameters()}

    def compare(module: nn.Module, *_: Any) -> None:
        for name, value in before.items():
            if not torch.equal(_tensor(module, name).detach(), value):
                raise CheckFailure(f"{when}, the inner loop changes its `{name}`")

    handle = layer.register_forward_pre_hook(compare)
    outer = torch.optim.Adam(made.parameters(), lr=0.05)
    for number in range(2):
        made.step(subject.batch(seed=number), outer)
    made.evaluate(subject.batch())
    handle.remove()
    for name, value in layer.named_parameters():
        same(value.detach(), before[name], f"`{name}` after two steps {when}")


def _tensor(module: Any, name: str) -> Tensor:
    # Not by get_parameter: what a functional call puts in place of a parameter need not be one.
    for part in name.split("."):
        module = getattr(module, part)
    assert isinstance(module, Tensor)
    return module


@check("learners")
def batch_norm(subject: LearnerSubject) -> None:
    """Batch normalization in the network works: rows, steps and predictions are finite, running statistics unchanged.

    Statistics of one task must not reach another, and the network's own are not written. A learner without support for
    it raises a `GradhomogError`.
    """
    if not subject.accepts_batch_norm:
        raise NotApplicable("it refuses a network with batch normalization")
    made = subject.learner(norm=True)
    before = {name: value.clone() for name, value in _buffers(made).items()}
    outer = torch.optim.Adam(made.parameters(), lr=0.05)
    for number in range(3):
        batch = subject.batch(seed=number)
        made.step(batch, outer)
        result = made.evaluate(batch)
        finite = {name: value.detach() for name, value in made.named_parameters().items()}
        finite["losses at meta-test"] = torch.tensor(result.losses)
        if off := [name for name, value in finite.items() if not bool(torch.isfinite(value).all())]:
            raise CheckFailure(f"with batch normalization, not finite after {number + 1} steps: {', '.join(off)}")
    for name, value in _buffers(made).items():
        same(value, before[name], f"the buffer `{name}` after three steps")


def _buffers(made: Learner) -> dict[str, Tensor]:
    """Those of the network: modules of the learner may have others."""
    parts = {"encoder": made.encoder, "head": made.head}
    return {f"{part}.{name}": value for part, module in parts.items() for name, value in module.named_buffers()}
