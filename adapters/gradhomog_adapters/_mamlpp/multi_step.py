"""The multi-step loss: how much the query loss after each inner step counts, and how that ends in the last alone."""

from __future__ import annotations

# Of the even share 1/K: what a step that is not the last keeps until the annealing ends (the authors' code).
LEAST = 0.03


def shares(inner_steps: int, done: int, until: int) -> list[float]:
    """v_0 … v_{K−1} of L = Σ_k v_k L_Q(θ^{k+1}) in the meta-step that follows `done` others; they add up to one.

    With e = done/until: v_k = max(1 − e, 0.03)/K for k < K − 1, and the last has the rest; from `until` on it has all.

    Source: Antoniou et al. 2019, arXiv 1810.09502, section 4 (multi-step loss); the numbers are those of the authors'
    code, where e only changes from epoch to epoch.
    """
    if inner_steps == 0:
        return []
    if done >= until:
        return [0.0] * (inner_steps - 1) + [1.0]
    each = max(1 - done / until, LEAST) / inner_steps
    return [each] * (inner_steps - 1) + [1 - (inner_steps - 1) * each]
