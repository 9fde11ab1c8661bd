"""Helpers: steps of RotoGrad on given gradients at the heads, its rotations, and the weights of the paper."""

import torch

from gradhomog import TaskKey


def keys_of(tasks, domains=None):
    return [TaskKey(slot, domains[slot] if domains else "") for slot in range(tasks)]


def taken(pipe, grads, steps=1, domains=None):
    """Take steps on constant gradients at the heads, with orthonormal rows; return the result of the last."""
    rows = torch.eye(len(grads), dtype=torch.float64)
    for _ in range(steps):
        result = pipe.homogenize(rows, features=[grads] * 2, feature_grads=[grads] * 2, domains=domains)
    return result


def learn(pipe, grads, steps=1, domains=None):
    """Return the weights of the last of several steps."""
    return taken(pipe, grads, steps, domains).weights


def measured(pipe, grads):
    """Return the report of one step."""
    return taken(pipe, grads).measured["rotograd"]


def matrices(pipe, features, tasks, domains=None):
    """R_k, `[tasks, m, m]`."""
    basis = torch.eye(features, dtype=torch.float64).repeat(tasks, 1, 1)
    return pipe.transform(basis, keys_of(tasks, domains))[-1].mT


def weights_of_the_paper(norms, first):
    """C/‖G_k‖ with C = Σ α_k ‖G_k‖, in Python floats."""
    ratios = [norm / initial for norm, initial in zip(norms, first, strict=True)]
    common = sum(ratio / sum(ratios) * norm for ratio, norm in zip(ratios, norms, strict=True))
    return torch.tensor([common / norm for norm in norms], dtype=torch.float64)
