"""Logistic regression with an L2 penalty, fitted to its unique minimum."""

from __future__ import annotations

import torch
from torch import Tensor

# Largest entry of the gradient; scikit-learn's default is 1e-4. Much below 1e-7, the line search compares values of the
# objective that differ by rounding errors only.
GRADIENT_TOLERANCE = 1e-6
MAX_ITERATIONS = 1000  # as in the code of SKD; 10 to 30 suffice for unit vectors


def fit_logistic_regression(x: Tensor, members: Tensor, regularization: float) -> tuple[Tensor, Tensor]:
    """Minimize Σ_i −log softmax(W x_i + b)_{y_i} + λ/2 ‖W‖² by L-BFGS, in float64.

    The problem is convex, and W is unique. Biases have no penalty; their sum is 0, as at the start. A class without
    examples has no part in the softmax. With one class only, W = 0 and b = 0.

    Args:
        x: `[n, features]`.
        members: one-hot labels y `[n, classes]`.
        regularization: λ > 0; 1/C of scikit-learn's `LogisticRegression`.

    Returns:
        W `[classes, features]` and b `[classes]`, float64, without a graph. The error of W is about 1e-6/λ.
    """
    x, members = x.detach().double(), members.detach().double()
    weights = x.new_zeros(members.shape[1], x.shape[1], requires_grad=True)
    bias = x.new_zeros(members.shape[1], requires_grad=True)
    absent = members.sum(0) == 0
    labels = members.argmax(1)
    solver = torch.optim.LBFGS(
        [weights, bias], max_iter=MAX_ITERATIONS, tolerance_grad=GRADIENT_TOLERANCE, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def objective() -> Tensor:
        solver.zero_grad()
        outputs = (x @ weights.T + bias).masked_fill(absent, -torch.inf)
        value = torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")
        value = value + regularization / 2 * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        solver.step(objective)  # type: ignore[no-untyped-call]
    return weights.detach(), bias.detach()
