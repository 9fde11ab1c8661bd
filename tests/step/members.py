"""Two rows, and small homogenizers for pipelines."""

import torch

from gradhomog import Homogenizer
from gradhomog.registry.specs import HomogenizerSpec
from gradhomog.step.member import Member
from gradhomog.step.pipelines import Pipeline

ROWS = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]])
C = ((0.5, 0.5), (-1.0, 2.0))
D = ((1.0, 3.0), (0.0, 1.0))


def in_dict(rows):
    return {"weight": rows[:, :2].reshape(len(rows), 2, 1), "bias": rows[:, 2]}


class Weights(Homogenizer):
    def __init__(self, *weights):
        self.weights = torch.tensor(weights, dtype=torch.float64)

    def mix(self, step):
        return self.weights


class Matrix(Weights):
    """Returns a mixing matrix and records the Gramian of the rows that it receives."""

    def mix(self, step):
        self.seen = step.gramian()
        return self.weights


class Doubled(Homogenizer):
    def rows(self, step):
        return step.jacobian.map(lambda block: 2 * block)


class Plus(Homogenizer):
    """Adds one to the encoder's output while attached."""

    def attach(self, encoder):
        return [encoder.register_forward_hook(lambda module, inputs, output: output + 1)]


class Counter(Homogenizer):
    """Counts its steps."""

    state_names = ("count",)

    def __init__(self):
        self.count = 0

    def mix(self, step):
        return torch.ones(step.tasks)

    def update(self, step):
        return {"count": self.count + 1}


def faulty(stage, function, **attributes):
    return type("Faulty", (Homogenizer,), {stage: function, **attributes})()


def declared(homogenizer, **spec):
    """Return a pipeline of one homogenizer, as if it came from a plugin with this spec."""
    made = HomogenizerSpec(factory=type(homogenizer), summary="", **spec)
    return Pipeline([Member(homogenizer, "declared", {}, None, made)])
