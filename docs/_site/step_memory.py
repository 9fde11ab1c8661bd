"""The memory of a step with several losses, in gradients of the shared parameters."""

import torch
from torch import nn

import gradhomog
from gradhomog.experiments.profiling.harness import peak_bytes, tensor_bytes

TASKS, WIDTH, LAYERS = 8, 300, 8  # so large that rows are not copied into one matrix, as those of small networks are


def measure(expression: str) -> tuple[float, float]:
    """Peak of what the second step allocates, new state included, and the state: in gradients, for equal layers.

    >>> measure("none")  # the gradient itself
    (1.0, 0.0)
    """
    torch.manual_seed(0)
    pipe = gradhomog.pipeline(expression)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    encoder, heads = nn.Sequential(*layers), [nn.Linear(WIDTH, 1) for _ in range(TASKS)]
    x = torch.randn(2, WIDTH)

    def step() -> None:
        with pipe.attached(encoder):
            features = gradhomog.task_features(encoder(x), pipe, tasks=TASKS)
            residuals = [head(one) for head, one in zip(heads, features, strict=True)]
        losses = [one.square().mean() for one in residuals]
        gradhomog.backward(losses, pipe, parameters=encoder, features=features, residuals=residuals)

    step()
    encoder.zero_grad()  # here: its release is not counted
    gradient = sum(map(tensor_bytes, encoder.parameters()))
    return round(peak_bytes(step) / gradient, 1), round(tensor_bytes(pipe.state_dict()) / gradient, 1)
