"""Checks of meta-test, and of networks with frozen parameters and with batch normalization."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError
from gradhomog.learners.learner import Learner
from gradhomog.learners.scoring import accuracy
from gradhomog.testing.assertions import (
    central_difference,
    require_all_equal,
    require_close,
    require_derivative,
    require_equal,
)
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check
from gradhomog.testing.probing_homogenizers import Recorder, ZeroEncoder, ZeroFeatures
from gradhomog.testing.small_network import WAYS, network
from gradhomog.testing.snapshots import module_values
from gradhomog.testing.subjects import LearnerSubject


@check("learners")
def homogenizers_removed(subject: LearnerSubject) -> None:
    """`evaluate` and `predict` do not call homogenizers and predict the same as a learner without homogenizers.

    Checked after two steps with homogenizers that zero all features, with gradients enabled and under `no_grad`.
    """
    recorder, batch = Recorder(), subject.batch(seed=3)
    learner = subject.learner([recorder, ZeroEncoder(), ZeroFeatures()])
    outer = torch.optim.Adam(learner.parameters(), lr=0.05)
    for number in range(2):
        learner.step(subject.batch(seed=number), outer)
    bare = subject.learner(seed=1)
    bare.load_state_dict({**learner.state_dict(), "homogenizers": bare.homogenizers.state_dict()})
    recorder.calls.clear()
    for task in batch:
        arguments = task.support_x, task.support_y, task.query_x
        expected = bare.predict(*arguments)
        what = "a prediction after training with homogenizers"
        require_equal(learner.predict(*arguments), expected, what)
        with torch.no_grad():
            require_equal(learner.predict(*arguments), expected, f"{what}, under no_grad")
    if learner.evaluate(batch) != bare.evaluate(batch):
        raise CheckFailure(
            "`evaluate` after training with homogenizers gives other scores than the learner without homogenizers"
        )
    if recorder.calls:
        stages = sorted({call.stage for call in recorder.calls})
        raise CheckFailure(f"`evaluate` or `predict` calls the homogenizers: {stages}")


@check("learners")
def scores_independent_of_batch(subject: LearnerSubject) -> None:
    """The score of a task does not depend on the other tasks that are evaluated with it, nor on their order.

    Its loss and score must be those of the outputs of `predict`, and these outputs must not require grad.
    """
    batch, learner = subject.batch(), subject.learner()
    together, reversed_order = learner.evaluate(batch), learner.evaluate([batch[2], batch[1], batch[0]])
    for slot in range(3):
        task = batch[slot]
        alone = subject.learner().evaluate([task])
        outputs = learner.predict(task.support_x, task.support_y, task.query_x)
        if outputs.requires_grad:
            raise CheckFailure("`predict` returns outputs that require grad: detach them")
        score = accuracy(outputs, task.query_y)
        if score is None:
            score = float((outputs - task.query_y).square().mean())
        predicted = [score, float(learner.loss(outputs, task.query_y))]
        found = torch.tensor([together.scores[slot], together.losses[slot]], dtype=torch.float64)
        for how, other in (
            ("of the same task, evaluated alone", [alone.scores[0], alone.losses[0]]),
            ("with the tasks in reversed order", [reversed_order.scores[2 - slot], reversed_order.losses[2 - slot]]),
            ("from the outputs of `predict`", predicted),
        ):
            what = f"score and loss of task {slot}, compared with those {how}"
            require_close(found, torch.tensor(other, dtype=torch.float64), what, rtol=1e-9, atol=1e-12)


@check("learners")
def saliency(subject: LearnerSubject) -> None:
    """Predictions are differentiable w.r.t. the queries, as saliency maps require, or detached.

    The derivative is compared with central differences. `adapted_outputs` must not raise if `query_x` requires grad.
    """
    learner, task = subject.learner(), subject.task(4)
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(task.query_x.shape, generator=generator, dtype=torch.float64)

    def value(query_x: Tensor) -> Tensor:
        with learner.mode(training=False):
            outputs = learner.adapted_outputs(task.support_x, task.support_y, query_x)
        return (outputs * torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)).sum()

    query_x = task.query_x.clone().requires_grad_()
    outputs = value(query_x)
    if not outputs.requires_grad:
        raise NotApplicable("predictions are detached from the graph: no saliency maps for this learner")
    gradient = torch.autograd.grad(outputs, query_x, allow_unused=True)[0]
    found = 0.0 if gradient is None else float((gradient * along).sum())
    expected = float(central_difference(lambda t: value(task.query_x + t * along)))
    require_derivative(found, expected, "the derivative of a prediction w.r.t. the queries is")


# -- frozen parameters and batch normalization -----------------------------------------------------------------------


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
    without support for batch normalization raises a `GradhomogError`. This network has more features than that of the
    other checks.
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
