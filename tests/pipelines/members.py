"""Two rows, and small homogenizers to make pipelines of."""

from __future__ import annotations

import torch

from gradhomog import Homogenizer

ROWS = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]])
C = ((0.5, 0.5), (-1.0, 2.0))
D = ((1.0, 3.0), (0.0, 1.0))


def in_dict(rows):
    return {"weight": rows[:, :2].reshape(len(rows), 2, 1), "bias": rows[:, 2]}


class Weights(Homogenizer):
    def __init__(self, *weights):
        self.weights = torch.tensor(weights, dtype=torch.float64)

    def mix(self, evidence):
        return self.weights


class Matrix(Weights):
    """Returns a mixing matrix and remembers the Gramian that it saw."""

    def mix(self, evidence):
        self.seen = evidence.gramian()
        return self.weights


class Doubled(Homogenizer):
    def rows(self, jacobian):
        if isinstance(jacobian, torch.Tensor):
            return 2 * jacobian
        return {name: 2 * value for name, value in jacobian.items()}


class Noted(Homogenizer):
    """Adds one to the encoder's output while attached."""

    def attach(self, encoder):
        return [encoder.register_forward_hook(lambda module, inputs, output: output + 1)]


def faulty(stage, function):
    return type("Faulty", (Homogenizer,), {stage: function})()
