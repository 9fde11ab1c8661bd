"""Checks of meta-test: homogenizers removed, tasks independent, predictions differentiable w.r.t. the queries."""

from __future__ import annotations

import torch

from gradhomog.learners.scoring import accuracy
from gradhomog.testing.check_results import CheckFailure, check
from gradhomog.testing.comparisons import central_difference, require_close, require_derivative, require_equal
from gradhomog.testing.probing_homogenizers import Recorder, ZeroEncoder, ZeroFeatures
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
def saliency(subject: LearnerSubject) -> str:
    """Reports if predictions are differentiable w.r.t. the queries, as saliency maps require.

    The derivative is compared with central differences. `adapted_outputs` may return detached outputs, but must not
    raise if `query_x` requires grad.
    """
    learner, task = subject.learner(), subject.task(4)
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(task.query_x.shape, generator=generator, dtype=torch.float64)

    def value(query_x: torch.Tensor) -> torch.Tensor:
        with learner.mode(training=False):
            outputs = learner.adapted_outputs(task.support_x, task.support_y, query_x)
        return (outputs * torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)).sum()

    query_x = task.query_x.clone().requires_grad_()
    outputs = value(query_x)
    if not outputs.requires_grad:
        return "predictions are detached from the graph: no saliency maps for this learner"
    gradient = torch.autograd.grad(outputs, query_x, allow_unused=True)[0]
    found = 0.0 if gradient is None else float((gradient * along).sum())
    expected = float(central_difference(lambda t: value(task.query_x + t * along)))
    require_derivative(found, expected, "the derivative of a prediction w.r.t. the queries is")
    return "predictions are differentiable w.r.t. the queries: saliency maps are available"
