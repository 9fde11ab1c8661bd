"""Convolution of a task's images with a random kernel, a function of seed, meta-step number and domain; resumable."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import conv2d

from gradhomog import Task, to_device

SIZES = (1, 3, 5, 7, 11, 15)  # pixels, in the code of Wang and Deng 2021


class RandomConvolution(nn.Module):
    """Draws for each task, with a probability, one kernel for all its images.

    The kernel maps the C channels to C channels. Its side k is uniform in `SIZES`, and its entries are from
    N(0, 1 / (C k²)), Xavier initialization. Images are padded by zeros, so their size is unchanged.

    Args:
        probability: in [0, 1].
        seed: seed of the kernels.
    """

    def __init__(self, probability: float, seed: int) -> None:
        super().__init__()
        self.probability, self.seed, self.step = probability, seed, 0

    def convolve(self, task: Task, place: int) -> Task:
        """Return the task with convolved images, or unchanged; inputs other than `[n, C, h, w]` are unchanged.

        `place` is the number of tasks of the same domain before it in the batch.
        """
        if task.support_x.dim() != 4:
            return task
        # The domain instead of the slot: the order of tasks of different domains has no effect.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{self.step}/{place}/{task.domain}".encode()))
        if float(torch.rand((), generator=generator, dtype=torch.float64)) >= self.probability:
            return task
        channels = task.support_x.shape[1]
        size = SIZES[int(torch.randint(len(SIZES), (), generator=generator))]
        entries = torch.randn(channels, channels, size, size, generator=generator, dtype=torch.float64)
        kernel = to_device(entries / (size * math.sqrt(channels)), task.support_x.device, task.support_x.dtype)
        support_x, query_x = (conv2d(x, kernel, padding=size // 2) for x in (task.support_x, task.query_x))
        return replace(task, support_x=support_x, query_x=query_x)

    def on_step_end(self) -> None:
        self.step += 1

    # A Python number, because reading a buffer synchronizes with the device.
    def get_extra_state(self) -> dict[str, int]:
        return {"step": self.step}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        self.step = state["step"]
