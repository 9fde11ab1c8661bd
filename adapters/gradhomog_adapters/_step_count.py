"""The count of completed meta-steps, for learners with schedules or phases."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StepCount(nn.Module):
    """Number of completed meta-steps, as a buffer that is saved, loaded and copied with the learner."""

    done: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("done", torch.zeros((), dtype=torch.int64))
