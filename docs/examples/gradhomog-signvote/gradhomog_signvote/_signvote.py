"""Majority vote over signs, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradhomog import Homogenizer, OptionError, Rows


class SignVote(Homogenizer):
    """Where the tasks elect a sign, the entries of the other sign become zero.

    v_p = Σ_i sign(J_ip);  J'_ip = 0 if |v_p| > threshold · N and sign(J_ip) = −sign(v_p), else J_ip

    Args:
        threshold: in [0, 1): a vote counts if its majority, in shares of the N tasks, is greater. 0: every majority
            counts, and only a tie leaves its entries as they are.

    Differentiable in the rows wherever no entry is zero (the vote is a constant). State: none. Cost: one pass over the
    rows, which become a copy: this is a method of the `rows` stage, so no mixing matrix stands for it.

    Source: the vote is that of signSGD (Bernstein et al. 2018, arXiv 1802.04434, algorithm 3), which goes on to use the
    elected signs alone; here they choose whose values are kept, so that N identical rows are left as they are.

    >>> import torch, gradhomog
    >>> rows = torch.tensor([[1.0, 4.0], [2.0, -1.0], [-9.0, -1.0]])
    >>> gradhomog.pipeline([SignVote()]).combine(rows)
    tensor([ 1.0000, -0.6667])
    """

    def __init__(self, threshold: float = 0.0) -> None:
        if not 0 <= threshold < 1:
            raise OptionError(f"signvote: `threshold` must be in [0, 1), a share of the tasks; got {threshold!r}.")
        self.threshold = threshold

    def rows(self, jacobian: Rows) -> Rows:
        if isinstance(jacobian, Mapping):
            return {name: self._vote(tensor) for name, tensor in jacobian.items()}
        return self._vote(jacobian)

    def _vote(self, rows: Tensor) -> Tensor:
        """The same for one tensor `[tasks, *shape]`."""
        signs = rows.detach().sign()
        votes = signs.sum(dim=0)
        elected = votes.sign() * (votes.abs() > self.threshold * len(rows))
        return torch.where(signs * elected < 0, torch.zeros_like(rows), rows)
