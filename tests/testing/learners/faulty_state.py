"""Faulty at meta-test and in their state."""

from __future__ import annotations

import copy

import torch

from tests.testing.learners.faults import fails
from tests.testing.learners.good import OneStep


@fails("evaluated_alone", "score and loss of task 0 beside those of the tasks in the opposite order: off by")
class GoesOnAdapting(OneStep):
    """Each task begins where the last one ended."""

    def starting_point(self):
        known = {} if self.encoder.training else getattr(self, "last", {})
        return {**super().starting_point(), **known}

    def adapt(self, x, y, buffers):
        adapted = super().adapt(x, y, buffers)
        self.last = {name: value.detach().requires_grad_() for name, value in adapted.items()}
        return adapted


@fails("evaluated_alone", "score and loss of task 0 beside those of what `predict` returns: off by")
class EvaluatesMore(OneStep):
    """Adapts better where scores are counted than where predictions are made."""

    def evaluate(self, tasks):
        self.rate, rate = 2 * self.rate, self.rate
        try:
            return super().evaluate(tasks)
        finally:
            self.rate = rate


@fails("evaluated_alone", "`predict` returns outputs that keep a graph")
class PredictsWithGraph(OneStep):
    """Returns predictions with their graph."""

    def predict(self, support_x, support_y, query_x):
        with self.mode(training=False):
            return self.classify(self.adapt(support_x, support_y, self.buffers()), {}, self.encode({}, {}, query_x))


@fails("saliency", "Can't call numpy\\(\\) on Tensor that requires grad")
class LeavesTorch(OneStep):
    """Computes what torch could, elsewhere."""

    def adapted_outputs(self, support_x, support_y, query_x):
        return super().adapted_outputs(support_x, support_y, torch.from_numpy(query_x.numpy()))


@fails("saliency", "the derivative of a prediction w.r.t. the queries is .*; finite differences give")
class DifferentiatesHalf(OneStep):
    """One of two ways from the queries to the outputs is cut."""

    def adapted_outputs(self, support_x, support_y, query_x):
        return super().adapted_outputs(support_x, support_y, (query_x + query_x.detach()) / 2)


@fails("same_seed_same_answer", "of two made alike: not the same")
class DrawsFromTorch(OneStep):
    """Noise from the global generator."""

    def adapt(self, x, y, buffers):
        return super().adapt(x + 0.1 * torch.randn_like(x), y, buffers)


class Decays(OneStep):
    """The inner rate shrinks from step to step, and is not saved."""

    def step(self, batch, outer):
        report = super().step(batch, outer)
        self.rate /= 2
        return report


fails("resumes_from_state_dict", "the losses of step 5 after it was saved and loaded in mid-training: not")(Decays)


class SavesObjects(Decays):
    """Saves what `torch.load` refuses to make."""

    def state_dict(self):
        return {**super().state_dict(), "rate": copy.Error(self.rate)}


fails("resumes_from_state_dict", "its state holds more than tensors, numbers, texts, lists and dicts")(SavesObjects)


@fails("resumes_from_pickle", "[Cc]an't (get|pickle) local object|[Cc]an't pickle")
class HoldsFunction(OneStep):
    """A function made in the constructor cannot go to another process."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.loss = lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets)


@fails("resumes_from_copy", "the losses of step 5 after it was copied in mid-training: not the same")
class BoundToItsNetwork(OneStep):
    """A function made in the constructor stays with the network of the original."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.starting_point = lambda: self.named_parameters()


@fails("resumes_from_copy", "in mid-training: not the same")
class SharesTheNetwork(OneStep):
    """A copy that learns with the original."""

    def __deepcopy__(self, memo):
        made = copy.copy(self)
        made.homogenizers = copy.deepcopy(self.homogenizers, memo)
        memo.update({id(parameter): parameter for parameter in self.parameters()})
        return made


@fails("frozen_parameters", "with `encoder.0` frozen, the inner loop changes its `weight`")
class AdaptsAll(OneStep):
    """Adapts all parameters, frozen or not."""

    def starting_point(self):
        both = torch.nn.ModuleDict({"encoder": self.encoder, "head": self.head})
        frozen = {name: p.detach().requires_grad_() for name, p in both.named_parameters() if not p.requires_grad}
        return {**super().starting_point(), **frozen}


@fails("frozen_parameters", "with `encoder.0` frozen after the learner was made, there are rows of encoder.0.weight")
class RemembersParameters(OneStep):
    """Reads only once which parameters require gradients."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.known = super().named_parameters()

    def named_parameters(self):
        return (
            {n: p.requires_grad_() for n, p in self.known.items()}
            if "known" in vars(self)
            else super().named_parameters()
        )


@fails("batch_norm", "with batch normalization, not finite after 1 steps: losses at meta-test")
class NormalisesByOne(OneStep):
    """One query at a time, with statistics of its own, which one input does not have."""

    def adapted_outputs(self, support_x, support_y, query_x):
        for buffer in self.encoder.buffers():
            query_x = query_x / (buffer.double().var() * 0) if buffer.numel() > 1 else query_x
        return super().adapted_outputs(support_x, support_y, query_x)


@fails("memory_constant", "the tensors of the process grow by \\d+ bytes with every step")
class KeepsFeatures(OneStep):
    """Every feature there was, for a figure."""

    def row(self, loss, outputs, taps, gradients, grads):
        self.seen = [*getattr(self, "seen", []), taps[0].detach().clone()]
        return super().row(loss, outputs, taps, gradients, grads)


@fails("memory_constant", "the object grows by \\d+ bytes with every step")
class KeepsLosses(OneStep):
    """Every loss there was, as numbers."""

    def row(self, loss, outputs, taps, gradients, grads):
        self.seen = [*getattr(self, "seen", []), float(loss)]
        return super().row(loss, outputs, taps, gradients, grads)


@fails("cost", "RuntimeError: .*shapes cannot be multiplied")
class KnowsTheWidth(OneStep):
    """Written for four features, and no others."""

    def classify(self, parameters, buffers, features):
        return super().classify(parameters, buffers, features.reshape(-1, 4))
