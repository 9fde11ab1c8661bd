"""Checks on networks with frozen parameters and with batch normalization."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError
from gradhomog.learners.learner import Learner
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check
from gradhomog.testing.comparisons import require_all_equal
from gradhomog.testing.small_network import WAYS, network
from gradhomog.testing.snapshots import module_values
from gradhomog.testing.subjects import LearnerSubject


@check("learners")
def frozen_parameters(subject: LearnerSubject) -> None:
    """Parameters with `requires_grad=False` are constants: they have no row, and no step changes them.

    Neither meta-steps nor inner steps may change them; their values are compared whenever the layer runs. The check
    freezes one layer, one layer after the learner was made, and the whole encoder. A learner may reject frozen
    parameters by a `GradhomogError`.
    """
    for part, late in (("encoder.0", False), ("encoder.0", True), ("encoder", False)):
        encoder, head = network(0, subject.targets or WAYS)
        layer = encoder if part == "encoder" else encoder.get_submodule("0")
        try:
            if not late:
                layer.requires_grad_(False)
            learner = subject.make_for(encoder, head)
            layer.requires_grad_(False)
            rows = learner.rows(subject.batch()).jacobian
        except GradhomogError:
            continue  # the learner rejects frozen parameters
        when = f"with `{part}` frozen{' after the learner was made' if late else ''}"
        if frozen := [name for name in rows if name.startswith(f"{part}.")]:
            raise CheckFailure(f"{when}, there are rows for {', '.join(frozen)}")
        _require_constant(subject, learner, layer, when)


def _require_constant(subject: LearnerSubject, learner: Learner, layer: nn.Module, when: str) -> None:
    before = module_values(layer)

    def compare(module: nn.Module, *_: Any) -> None:
        for name, value in before.items():
            if not torch.equal(_tensor(module, name).detach(), value):
                raise CheckFailure(f"{when}, the inner loop changes its `{name}`")

    handle = layer.register_forward_pre_hook(compare)
    outer = torch.optim.Adam(learner.parameters(), lr=0.05)
    for number in range(2):
        learner.step(subject.batch(seed=number), outer)
    learner.evaluate(subject.batch())
    handle.remove()
    require_all_equal(module_values(layer), before, f"`{{}}` after two steps {when}")


def _tensor(module: Any, name: str) -> Tensor:
    # Not get_parameter: a functional call may replace a parameter by a tensor that is no nn.Parameter.
    for part in name.split("."):
        module = getattr(module, part)
    assert isinstance(module, Tensor)
    return module


@check("learners")
def batch_norm(subject: LearnerSubject) -> None:
    """With batch normalization, rows, steps and predictions are finite and running statistics do not change.

    Statistics must not leak from one task to another, so the network's running statistics are not written. A learner
    without support for batch normalization raises a `GradhomogError`.
    """
    if not subject.accepts_batch_norm:
        raise NotApplicable("the learner rejects networks with batch normalization")
    learner = subject.learner(norm=True)
    before = copy.deepcopy(_buffers(learner))
    outer = torch.optim.Adam(learner.parameters(), lr=0.05)
    for number in range(3):
        batch = subject.batch(seed=number)
        learner.step(batch, outer)
        result = learner.evaluate(batch)
        values = {name: value.detach() for name, value in learner.named_parameters().items()}
        values["losses at meta-test"] = torch.tensor(result.losses)
        if nonfinite := [name for name, value in values.items() if not bool(torch.isfinite(value).all())]:
            raise CheckFailure(f"with batch normalization, not finite after {number + 1} steps: {', '.join(nonfinite)}")
    require_all_equal(_buffers(learner), before, "the buffer `{}` after three steps")


def _buffers(learner: Learner) -> dict[str, Tensor]:
    """Buffers of the network, without those of the learner's own modules."""
    parts = {"encoder": learner.encoder, "head": learner.head}
    return {f"{part}.{name}": value for part, module in parts.items() for name, value in module.named_buffers()}
