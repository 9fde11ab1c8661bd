"""Majority vote over the signs of gradient entries."""

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from gradhomog import Homogenizer, Jacobian, Step


class SignVote(Homogenizer):
    """Zeroes the entries whose sign loses a majority vote over the tasks.

    v_p = Σ_i sign(J_ip);  J'_ip = 0 if |v_p| > threshold · N and sign(J_ip) = −sign(v_p), else J_ip

    Args:
        threshold: a vote counts if its majority is a larger share of the N tasks than this. 0: every majority counts,
            and only a tie leaves its entries unchanged.

    Differentiable in the rows wherever no entry is zero (the vote is a constant). State: none. Cost: one pass over the
    rows, and a copy of them: a method of the `rows` stage has no mixing matrix.

    Source: the vote of signSGD (Bernstein et al. 2018, arXiv 1802.04434, algorithm 3). Deviation: signSGD steps by the
    elected signs; here they select the entries that are kept, so that N identical rows do not change.

    >>> import torch, gradhomog
    >>> jacobian = torch.tensor([[1.0, 4.0], [2.0, -1.0], [-9.0, -1.0]])
    >>> gradhomog.pipeline([SignVote()]).combine(jacobian)
    tensor([ 1.0000, -0.6667])
    """

    def __init__(self, threshold: Annotated[float, Interval(ge=0, lt=1)] = 0.0) -> None:
        self.threshold = threshold

    def rows(self, step: Step) -> Jacobian:
        return step.jacobian.map(self._vote)

    def _vote(self, block: Tensor) -> Tensor:
        """Return the new rows of one parameter, `[tasks, *shape]`."""
        signs = block.detach().sign()
        votes = signs.sum(dim=0)
        elected = votes.sign() * (votes.abs() > self.threshold * len(block))
        return torch.where(signs * elected < 0, torch.zeros_like(block), block)
