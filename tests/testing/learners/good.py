"""A correct learner in small methods. Each faulty learner differs from it by a single error."""

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from gradhomog import Learner, LearnerSpec, OptionError, TaskRow


class OneStep(Learner):
    """MAML with one inner step of gradient descent: a row is the derivative of the query loss through that step.

    Args:
        encoder, head, homogenizers, loss: as for every learner.
        rate: > 0, learning rate of the inner step.
    """

    def __init__(self, encoder, head, homogenizers=None, *, rate: float = 0.1, loss: Any = None):
        super().__init__(encoder, head, homogenizers, loss)
        if not 0 < rate < float("inf"):
            raise OptionError(f"`rate` must be positive and finite; got {rate!r}.")
        self.rate = rate

    def task_row(self, task, key):
        buffers = self.buffers()
        self.homogenizers.begin(key, "support")
        adapted = self.adapt(task.support_x, task.support_y, buffers)
        self.homogenizers.begin(key, "query")
        features = self.encode(adapted, buffers, task.query_x)
        if not features.requires_grad:
            features = features.detach().requires_grad_()
        taps = self.transform(features, key)
        outputs = self.classify(adapted, buffers, taps[-1][0])
        loss = self.loss(outputs, task.query_y)
        return self.row(loss, outputs, taps, *self.differentiate(loss, taps))

    def transform(self, features, key):
        return self.homogenizers.transform(features[None], [key])

    def differentiate(self, loss, taps):
        """Return gradients by parameter name, and gradients w.r.t. the features."""
        parameters = self.named_parameters()
        gradients = torch.autograd.grad(loss, [*parameters.values(), *taps], allow_unused=True)
        feature_grads = [gradient[0] for gradient in gradients[len(parameters) :]]
        return dict(zip(parameters, gradients, strict=False)), feature_grads

    def row(self, loss, outputs, taps, gradients, grads):
        return TaskRow(loss.detach(), gradients, outputs.detach(), [tap[0].detach() for tap in taps], grads)

    def adapted_outputs(self, support_x, support_y, query_x):
        buffers = self.buffers()
        with torch.enable_grad():
            adapted = self.adapt(support_x, support_y, buffers)
        adapted = {name: value.detach() for name, value in adapted.items()}
        return self.classify(adapted, buffers, self.encode(adapted, buffers, query_x))

    def adapt(self, x, y, buffers):
        """Return all parameters after the inner step."""
        start = self.starting_point()
        loss = self.loss(self.classify(start, buffers, self.encode(start, buffers, x)), y)
        gradients = torch.autograd.grad(loss, list(start.values()), create_graph=True, allow_unused=True)
        pairs = zip(start.items(), gradients, strict=True)
        return {name: p if gradient is None else p - self.rate * gradient for (name, p), gradient in pairs}

    def starting_point(self):
        return self.named_parameters()

    def buffers(self):
        """Return copies of the buffers, so that writes of a task do not persist."""
        both = nn.ModuleDict({"encoder": self.encoder, "head": self.head})
        return {name: buffer.clone() for name, buffer in both.named_buffers()}

    def encode(self, parameters, buffers, x):
        return self.call("encoder", {**parameters, **buffers}, x)

    def classify(self, parameters, buffers, features):
        return self.call("head", {**parameters, **buffers}, features)

    def call(self, part, tensors, x):
        own = {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(part)}
        return functional_call(getattr(self, part), own, (x,))


GOOD = {OneStep: LearnerSpec(OneStep, "one gradient step", "Finn et al. 2017, arXiv 1703.03400", {"exact_rows"})}
