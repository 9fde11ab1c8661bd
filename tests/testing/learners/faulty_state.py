"""Learners with faults at meta-test, in saved state, with frozen parameters, or of memory."""

from __future__ import annotations

import copy

import torch

from tests.testing.faults import fails
from tests.testing.learners.good import OneStep


@fails(
    "scores_independent_of_batch",
    "score and loss of task 0, compared with those with the tasks in reversed order: off by",
)
class AdaptsAcrossTasks(OneStep):
    """Starts the adaptation of each task from the result of the previous one."""

    def starting_point(self):
        cached = {} if self.encoder.training else getattr(self, "last", {})
        return {**super().starting_point(), **cached}

    def adapt(self, x, y, buffers):
        adapted = super().adapt(x, y, buffers)
        self.last = {name: value.detach().requires_grad_() for name, value in adapted.items()}
        return adapted


@fails(
    "scores_independent_of_batch", "score and loss of task 0, compared with those from the outputs of `predict`: off by"
)
class LargerRateInEvaluate(OneStep):
    """Adapts with a larger rate in `evaluate` than in `predict`."""

    def evaluate(self, tasks):
        self.rate, rate = 2 * self.rate, self.rate
        try:
            return super().evaluate(tasks)
        finally:
            self.rate = rate


@fails("scores_independent_of_batch", "`predict` returns outputs that require grad: detach them")
class PredictsWithGraph(OneStep):
    """Returns predictions with their graph."""

    def predict(self, support_x, support_y, query_x):
        with self.mode(training=False):
            return self.classify(self.adapt(support_x, support_y, self.buffers()), {}, self.encode({}, {}, query_x))


@fails("saliency", "the derivative of a prediction w.r.t. the queries is .*; finite differences give")
class DetachesHalf(OneStep):
    """Detaches one of two paths from the queries to the outputs."""

    def adapted_outputs(self, support_x, support_y, query_x):
        return super().adapted_outputs(support_x, support_y, (query_x + query_x.detach()) / 2)


@fails("resumes_from_state_dict", "the losses of step 5 after it was saved and loaded during training: not")
class UnsavedRate(OneStep):
    """The inner rate decreases with every step, and is not saved."""

    def step(self, batch, outer):
        report = super().step(batch, outer)
        self.rate /= 2
        return report


@fails("resumes_from_copy", "after a copy was trained: the copy and the original share state: not exactly equal")
class SharesNetwork(OneStep):
    """A copy that shares its parameters with the original."""

    def __deepcopy__(self, memo):
        duplicate = copy.copy(self)
        duplicate.homogenizers = copy.deepcopy(self.homogenizers, memo)
        memo.update({id(parameter): parameter for parameter in self.parameters()})
        return duplicate


@fails("frozen_parameters", "with `encoder.0` frozen, the inner loop changes its `weight`")
class AdaptsFrozenParameters(OneStep):
    """Adapts all parameters, frozen or not."""

    def starting_point(self):
        both = torch.nn.ModuleDict({"encoder": self.encoder, "head": self.head})
        frozen = {name: p.detach().requires_grad_() for name, p in both.named_parameters() if not p.requires_grad}
        return {**super().starting_point(), **frozen}


@fails("frozen_parameters", "with `encoder.0` frozen after the learner was made, there are rows for encoder.0.weight")
class CachesParameters(OneStep):
    """Reads only at construction which parameters require gradients."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.cached = super().named_parameters()

    def named_parameters(self):
        return (
            {n: p.requires_grad_() for n, p in self.cached.items()}
            if "cached" in vars(self)
            else super().named_parameters()
        )


@fails("batch_norm", "with batch normalization, not finite after 1 steps: losses at meta-test")
class NormalizesSingleQueries(OneStep):
    """Normalizes each query by its own statistics, which are undefined for a single input."""

    def adapted_outputs(self, support_x, support_y, query_x):
        for buffer in self.encoder.buffers():
            query_x = query_x / (buffer.double().var() * 0) if buffer.numel() > 1 else query_x
        return super().adapted_outputs(support_x, support_y, query_x)


@fails("memory_constant", "the object grows by \\d+ bytes with every step")
class KeepsLosses(OneStep):
    """Keeps all losses as floats."""

    def row(self, loss, outputs, taps, gradients, grads):
        self.seen = [*getattr(self, "seen", []), float(loss)]
        return super().row(loss, outputs, taps, gradients, grads)


@fails("cost", "RuntimeError: .*shapes cannot be multiplied")
class FixedFeatureCount(OneStep):
    """Works only with four features."""

    def classify(self, parameters, buffers, features):
        return super().classify(parameters, buffers, features.reshape(-1, 4))
