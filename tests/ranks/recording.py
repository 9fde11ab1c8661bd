"""A process group that counts the messages and bytes that a rank sends, by a gloo group that does the work."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor


class RecordingGroup(dist.ProcessGroup):
    """A group of gloo whose collective operations are counted.

    Attributes:
        sent: bytes by operation, for the algorithms that send the fewest (rings).
        calls: the number of operations.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._ranks = size
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def clear(self) -> None:
        """Begin to count again."""
        self.sent.clear()
        self.calls.clear()

    def _record(self, operation: str, sent: int) -> None:
        self.sent[operation] += sent
        self.calls[operation] += 1

    def getBackendName(self) -> str:
        return "recording"

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        self._record("all_reduce", 2 * _bytes(tensors) * (self._ranks - 1) // self._ranks)
        return self._gloo.allreduce(tensors, opts or dist.AllreduceOptions())

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        self._record("all_gather", _bytes([input]) * (self._ranks - 1))
        return self._gloo._allgather_base(output, input, opts or dist.AllgatherOptions())

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        self._record("reduce_scatter", _bytes([input]) * (self._ranks - 1) // self._ranks)
        return self._gloo._reduce_scatter_base(output, input, opts or dist.ReduceScatterOptions())

    def all_to_all_single(
        self, output: Tensor, input: Tensor, received: list[int], sent: list[int], opts: Any = None
    ) -> Any:  # fmt: skip
        others = sum(size for rank, size in enumerate(sent) if rank != self.rank())
        self._record("all_to_all", others * input.element_size())
        return self._gloo.alltoall_base(output, input, received, sent, opts or dist.AllToAllOptions())

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        self._record("names", _bytes(inputs) * (self._ranks - 1))
        return self._gloo.allgather(outputs, inputs, opts or dist.AllgatherOptions())

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._gloo.broadcast(tensors, opts or dist.BroadcastOptions())

    def barrier(self, opts: Any = None) -> Any:
        return self._gloo.barrier(opts or dist.BarrierOptions())


def recording_group() -> RecordingGroup:
    """Return a new group of all ranks that counts bytes."""
    if "recording" not in dist.Backend.backend_list:
        dist.Backend.register_backend("recording", RecordingGroup, devices=["cpu"])
    group = dist.new_group(backend="recording")
    assert isinstance(group, RecordingGroup)
    return group


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
