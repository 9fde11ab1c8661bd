"""Checks of meta-test: without homogenizers, each task by itself, differentiable w.r.t. the queries if claimed."""

from __future__ import annotations

import torch

from gradhomog.scoring import accuracy
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import agree, central_difference, derivatives_agree, same
from gradhomog.testing.learners.probes import Recorder, ZeroEncoder, ZeroFeatures
from gradhomog.testing.learners.subject import LearnerSubject


@check("learners")
def homogenizers_removed(subject: LearnerSubject) -> None:
    """`evaluate` and `predict` call nothing of the homogenizers, and predict what the bare learner does.

    After two steps with homogenizers that zero all features, in any gradient mode of the caller.
    """
    recorder, batch = Recorder(), subject.batch(seed=3)
    made = subject.learner([recorder, ZeroEncoder(), ZeroFeatures()])
    outer = torch.optim.Adam(made.parameters(), lr=0.05)
    for number in range(2):
        made.step(subject.batch(seed=number), outer)
    bare = subject.learner(seed=1)
    bare.load_state_dict({**made.state_dict(), "homogenizers": bare.homogenizers.state_dict()})
    recorder.calls.clear()
    for task in batch:
        arguments = task.support_x, task.support_y, task.query_x
        expected = bare.predict(*arguments)
        same(made.predict(*arguments), expected, "a prediction after training with homogenizers")
        with torch.no_grad():
            same(made.predict(*arguments), expected, "a prediction after training with homogenizers, under no_grad")
    if made.evaluate(batch) != bare.evaluate(batch):
        raise CheckFailure("`evaluate` after training with homogenizers does not give the scores of the bare learner")
    if recorder.calls:
        stages = sorted({call.stage for call in recorder.calls})
        raise CheckFailure(f"`evaluate` or `predict` calls the homogenizers: {stages}")


@check("learners")
def evaluated_alone(subject: LearnerSubject) -> None:
    """The score of a task does not depend on the other tasks evaluated with it, nor on their order.

    Its loss and score are those of what `predict` returns for it, and `predict` returns no graph.
    """
    batch, made = subject.batch(), subject.learner()
    together, turned = made.evaluate(batch), made.evaluate([batch[2], batch[1], batch[0]])
    for slot in range(3):
        task = batch[slot]
        alone = subject.learner().evaluate([task])
        outputs = made.predict(task.support_x, task.support_y, task.query_x)
        if outputs.requires_grad:
            raise CheckFailure("`predict` returns outputs that keep a graph")
        score = accuracy(outputs, task.query_y)
        if score is None:
            score = float((outputs - task.query_y).square().mean())
        predicted = [score, float(made.loss(outputs, task.query_y))]
        found = torch.tensor([together.scores[slot], together.losses[slot]], dtype=torch.float64)
        for how, other in (
            ("of the same task evaluated alone", [alone.scores[0], alone.losses[0]]),
            ("of the tasks in the opposite order", [turned.scores[2 - slot], turned.losses[2 - slot]]),
            ("of what `predict` returns", predicted),
        ):
            what = f"score and loss of task {slot} beside those {how}"
            agree(found, torch.tensor(other, dtype=torch.float64), what, rtol=1e-9, atol=1e-12)


@check("learners")
def saliency(subject: LearnerSubject) -> str:
    """Whether predictions are differentiable w.r.t. the queries, for saliency maps: reported.

    The derivative is compared with central differences. `adapted_outputs` may return outputs outside the graph, but
    must not raise where `query_x` requires grad.
    """
    made, task = subject.learner(), subject.task(4)
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(task.query_x.shape, generator=generator, dtype=torch.float64)

    def value(query_x: torch.Tensor) -> torch.Tensor:
        with made.mode(training=False):
            outputs = made.adapted_outputs(task.support_x, task.support_y, query_x)
        return (outputs * torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)).sum()

    query_x = task.query_x.clone().requires_grad_()
    outputs = value(query_x)
    if not outputs.requires_grad:
        return "predictions are outside the graph: saliency maps leave this learner out"
    gradient = torch.autograd.grad(outputs, query_x, allow_unused=True)[0]
    found = 0.0 if gradient is None else float((gradient * along).sum())
    expected = float(central_difference(lambda t: value(task.query_x + t * along)))
    if not derivatives_agree(found, expected):
        raise CheckFailure(
            f"the derivative of a prediction w.r.t. the queries is {found:.6g}; finite differences give {expected:.6g}"
        )
    return "predictions are differentiable w.r.t. the queries: saliency maps can be drawn"
