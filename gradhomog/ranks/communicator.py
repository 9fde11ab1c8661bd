"""The ranks of a step: their collective operations, and the agreement that keeps them from waiting for one that raised.

One process is a group of one rank, whose communicator exchanges nothing.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from gradhomog.errors import OptionError, RankError
from gradhomog.step.pipelines import Pipeline

Over = Literal["batch", "tasks"]


@dataclass(frozen=True)
class Ranks:
    """The distribution of the rows of one step over the ranks of a process group.

    `"batch"`: every rank has all N tasks on its part of the batch, J_i = Σ_r w_ri J_ri with w_ri = e_ri / Σ_s e_si and
    e_ri examples of task i on rank r. `"tasks"`: every rank has some of the N tasks, and J consists of the rows of all
    ranks in the order of the ranks. The step is that of one process with all rows, up to rounding, and is the same on
    every rank.

    Args:
        over: `"batch"`, as in data-parallel training of one model with several losses; `"tasks"`, as in meta-learning.
        group: the process group; None for the default group.
        examples: for `over="batch"`: the number of examples on this rank, or one number per task. With numbers, losses
            that are means over unequal parts are averaged as in one process. By default all ranks count equally. A task
            that is absent on this rank counts 0.
        local: homogenize the rows of each rank, and average the directions over the ranks. This is another method, at
            the traffic of plain data parallelism: homogenizers receive the gradients of a part of the batch, and have a
            different state on each rank.
        gather: allow homogenizers that read rows (such as `graddrop`, `trimmed_mean`, `tracked`): every rank then
            receives all rows.

        compare_every: compare the replicas' parameters and the homogenizers' states, by one number for each tensor, in
            the first step and then every this many steps; None for the first step only. The cost is that of reading
            them once, and 8 bytes per tensor in a message that is sent anyway.

    Each of K ranks stores the part [N, params/K] of the rows, and computes this part of the direction. Bytes sent by
    each rank for P bytes of parameters: `"batch"` (N+1) P (K−1)/K, `"tasks"` with n tasks per rank (n+1) P (K−1)/K;
    plain data parallelism sends 2 P (K−1)/K. Norms and Gramians are summed over the ranks in float64. With
    `fully_shard` (FSDP2) rows and direction stay split like the parameters, and only norms and Gramians are sent.
    Groups of parameters (`per` of `gradhomog.backward`) send equally many bytes of rows, in one message per task and
    group.

    Raises:
        OptionError: an option is invalid.

    >>> Ranks("batch", examples=16)
    Ranks(over='batch', group=None, examples=16, local=False, gather=False, compare_every=100)
    """

    over: Over = "batch"
    group: dist.ProcessGroup | None = None
    examples: float | Sequence[float] | None = None
    local: bool = False
    gather: bool = False
    compare_every: int | None = 100

    def __post_init__(self) -> None:
        if self.over not in ("batch", "tasks"):
            raise OptionError(f"`over` must be 'batch' or 'tasks'; got {self.over!r}.")
        if self.examples is not None and self.over == "tasks":
            raise OptionError("`examples` is for over='batch'; with over='tasks' every task is on one rank. Omit it.")
        given = 0 if self.examples is None else self.examples
        numbers = given if isinstance(given, list | tuple) else [given]
        if not all(isinstance(number, int | float) and 0 <= number < float("inf") for number in numbers):
            raise OptionError(
                "`examples` must be a finite number ≥ 0, or a list of them, one per task; got "
                f"{given!r}. Convert tensors and arrays by `.tolist()`."
            )
        if self.compare_every is not None and (type(self.compare_every) is not int or self.compare_every < 1):
            raise OptionError(f"`compare_every` must be an integer ≥ 1 or None; got {self.compare_every!r}.")
        if self.local and (self.gather or self.examples is not None):
            raise OptionError("`local` averages directions: `gather` and `examples` have no effect. Omit them.")

    @property
    def size(self) -> int:
        """K, the number of ranks; 1 without an initialized process group."""
        return dist.get_world_size(self.group) if dist.is_available() and dist.is_initialized() else 1

    def check_pipeline(self, pipe: Pipeline) -> None:
        """Raise unless the pipeline can act on distributed rows.

        Raises:
            OptionError: the message names the homogenizer.
        """
        if self.local:
            return
        if self.over == "tasks" and pipe.requirements.choosing:
            raise OptionError(
                f"{pipe.requirements.choosing[0].selector} chooses tasks, which requires over='batch'; got "
                f"over='tasks'."
            )
        reading = pipe.requirements.readers["jacobian"]
        if reading and not self.gather:
            raise OptionError(
                f"{' and '.join(reading)} reads rows, which are distributed over {self.size} ranks. Pass "
                "Ranks(..., gather=True) to send all rows to every rank, or Ranks(..., local=True) to homogenize each "
                "rank's rows separately."
            )


def pipeline_values(pipe: Pipeline) -> dict[str, object]:
    """Return what must be the same of the pipelines of all ranks, for `GroupCommunicator.agree`."""
    return {
        "pipeline": {"homogenizers": str(pipe), "nonfinite": pipe.nonfinite, "debug": pipe.debug},
        "number of steps": pipe.steps,
        "progress since the pipeline was created or loaded": "none" if is_first_step(pipe) else "steps",
    }


def is_first_step(pipe: Pipeline) -> bool:
    """True if no step was taken since the pipeline was created or its state was loaded."""
    return pipe.steps == pipe.resumed_at


REMEDIES = {
    "calls": "Call the same functions of gradhomog on every rank, and `add` of `accumulated` equally often with "
    "fully_shard.",
    "options": "Pass the same options on every rank: `inspect` must not depend on the rank, and all or none of the "
    "ranks pass `examples`.",
    "parameters": "Create the model in the same way on every rank.",
    "pipeline": "Create the same pipeline on every rank.",
    "number of steps": "Load the same checkpoint on every rank.",
    "progress since the pipeline was created or loaded": "Create the pipeline, or load its state, before "
    "the same step on every rank.",
    "tasks": "Pass all tasks in the same order on every rank, None for a task that is absent on this rank.",
    "present tasks": "With fully_shard, SyncBatchNorm or another layer whose backward pass has collective operations, "
    "every rank must have a loss for each task. For a task without labels on this rank pass a loss that depends on the "
    "outputs, such as 0 * output.sum(), and `examples` of 0.",
    "tasks to choose from": "A homogenizer such as `tracked` chooses tasks, so a task must be present on all ranks or "
    "absent on all. Give every rank examples of all tasks, or use another homogenizer.",
    "sizes of tasks": "Give all tasks of a step equally many query examples of the same shape, as in one process.",
    "heads": "A task with a head needs a loss on every rank that uses the head in the same way. For a task without "
    "labels on this rank pass a loss that depends on its head, such as 0 * head(z).sum(), and `examples` of 0.",
}
"""For everything that can differ between ranks, by its name in error messages, how to make it the same."""

# PyTorch 2.13 renames two collectives and deprecates the names before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Pending:
    """A tensor that a collective operation is computing from `sent`, which must not be freed before.

    Attributes:
        summed: the result is the sum of `received` over its first dimension.
    """

    received: Tensor
    sent: Tensor
    work: dist.Work
    summed: bool = False

    def wait(self) -> Tensor:
        """Return the tensor when the operation has ended."""
        self.work.wait()
        return self.received.sum(0) if self.summed else self.received


class Communicator:
    """One process: a group of one rank, whose operations exchange nothing.

    Attributes:
        ranks: how a step is distributed.
        size, rank: K, the number of ranks, and the number of this one.
    """

    size, rank = 1, 0

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def raise_together(self) -> AbstractContextManager[None]:
        """If this rank raises within the block before it calls `agree`, the other ranks raise in `agree`."""
        return nullcontext()

    def agree(self, count: int, same: Mapping[str, object], *, last: bool = True) -> list[int]:
        """Exchange the number of tasks on each rank; return all of them.

        Args:
            count: the number of tasks on this rank.
            same: values that must have the same `repr` on all ranks, by their names in `REMEDIES`.
            last: False if the ranks agree again in this step; a rank may then still raise before.

        Raises:
            RankError: another rank raised an error, or has other values. Raised on all ranks.
        """
        return [count]

    def examples(self, slots: Sequence[int]) -> list[float]:
        """Return the number of examples of each task on this rank, which multiplies its loss; 1 for one rank."""
        return [1.0] * len(slots)


class GroupCommunicator(Communicator):
    """The collective operations of one step: those on vectors, and one agreement before rows are exchanged."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self.group = ranks.group
        self.size: int = dist.get_world_size(self.group)
        self.rank: int = dist.get_rank(self.group)
        self._agreed = False
        cuda = "nccl" in str(dist.get_backend(self.group))
        # For each type of device, such as "cpu:gloo,cuda:nccl"; the backend itself can be "undefined".
        self._backends = str(dist.get_backend_config(self.group)).split(",")
        self._device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    def examples(self, slots: Sequence[int]) -> list[float]:
        """Return the number of examples of each task on this rank, which multiplies its loss; 1 by default.

        0 for a task beyond the end of the list; that error is raised later, when the names of all tasks are known.
        """
        given = 1.0 if self.ranks.examples is None else self.ranks.examples
        if isinstance(given, int | float):
            return [float(given)] * len(slots)
        return [float(given[slot]) if slot < len(given) else 0.0 for slot in slots]

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if not self._agreed:
                self._gather_header(0, {})
            raise

    def agree(self, count: int, same: Mapping[str, object], *, last: bool = True) -> list[int]:
        self._agreed = True  # also if this fails below, because the other ranks then do not agree once more
        headers = self._gather_header(1 + count, same)
        failed = [rank for rank, (status, *_) in enumerate(headers) if status == 0]
        if failed:
            raise RankError(
                f"rank {failed[0]} raised an error before the exchange of rows; see its message. Nothing was changed."
            )
        for column, (name, remedy) in enumerate(REMEDIES.items(), start=1):
            differing = [rank for rank, header in enumerate(headers) if header[column] != headers[0][column]]
            if differing:
                raise RankError(
                    f"all ranks must have the same {name}; rank {differing[0]} differs from rank 0. Rank {self.rank} "
                    f"has {_shorten(repr(same.get(name)))}. {remedy} Nothing was changed."
                )
        self._agreed = last
        return [header[0] - 1 for header in headers]

    def settle(self, failure: Exception | None, flags: Sequence[float]) -> Tensor:
        """Exchange flags after work in which a rank may have failed while the others waited; `[ranks, flags]`.

        Raises:
            Exception: `failure`, on this rank.
            RankError: another rank failed.
        """
        gathered = self.all_gather_numbers([failure is not None, *flags])
        if failure is not None:
            raise failure
        if gathered[:, 0].any():
            rank = int(gathered[:, 0].argmax())
            raise RankError(f"rank {rank} raised an error in a backward pass; see its message. Nothing was changed.")
        return gathered[:, 1:]

    def _gather_header(self, status: int, same: Mapping[str, object]) -> list[list[int]]:
        """Return for each rank its status and one checksum for each of `REMEDIES`."""
        checksums = [zlib.crc32(repr(same.get(name)).encode()) & 0x7FFFFFFF for name in REMEDIES]
        header = torch.tensor([status, *checksums], dtype=torch.int32, device=self._device)
        found: list[list[int]] = self.all_gather(header).view(self.size, -1).tolist()
        return found

    # -- operations on vectors ---------------------------------------------------------------------------------------

    def all_gather(self, value: Tensor) -> Tensor:
        """Return the ranks' vectors, which have the same size, one after the other."""
        found = value.new_empty(self.size * value.numel())
        _all_gather(found, value.contiguous().view(-1), group=self.group)
        return found

    def all_gather_parts(self, value: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the ranks' tensors `[sizes[rank], *shape]`, one after the other."""
        padded = value.new_zeros(max(sizes), *value.shape[1:])
        padded[: len(value)] = value
        parts = self.all_gather(padded).view(self.size, *padded.shape)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def all_gather_numbers(self, numbers: Sequence[float]) -> Tensor:
        """Return the numbers of each rank, float64 `[ranks, numbers]` on the CPU."""
        found = self.all_gather(torch.tensor(numbers, dtype=torch.float64, device=self._device))
        return found.view(self.size, -1).cpu()

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over the ranks; every rank receives the same bits."""
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def sum_on_cpu(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor on the CPU over the ranks, on the CPU; NCCL sums only tensors on the GPU."""
        return self.sum(value.to(self._device)).cpu()

    def start_reduce_scatter(self, value: Tensor) -> Pending:
        """Start to compute this rank's part of the sum of the ranks' vectors, which is split into K equal parts."""
        if f"{value.device.type}:gloo" in self._backends:
            # PyTorch 2.13 computes it by an all-reduce, which sends twice the bytes.
            parts = torch.empty_like(value)
            work = dist.all_to_all_single(parts, value, group=self.group, async_op=True)
            return Pending(parts.view(self.size, -1), value, work, summed=True)
        found = value.new_empty(value.numel() // self.size)
        return Pending(found, value, _reduce_scatter(found, value, group=self.group, async_op=True))

    def all_to_all(self, value: Tensor, sizes: Sequence[int]) -> Tensor:
        """Send the r-th of K equal parts of a vector to rank r; return the parts received, `sizes[r]` from rank r."""
        found = value.new_empty(sum(sizes))
        sent = [value.numel() // self.size] * self.size
        dist.all_to_all_single(found, value, list(sizes), sent, group=self.group)
        return found

    def all_gather_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of all ranks, one rank after the other."""
        found: list[Sequence[str]] = [()] * self.size
        dist.all_gather_object(found, tuple(names), group=self.group)
        return [name for part in found for name in part]


ONE_PROCESS = Communicator(Ranks())


def communicate(group: Ranks | dist.ProcessGroup | None, over: Over) -> Communicator:
    """Return the communicator of a step.

    `over`: what a plain process group distributes.

    Raises:
        OptionError: this process is one of several ranks and `group` is None: each rank would compute another
            direction, and the replicas would diverge; or `group` has another type.
    """
    if group is None:
        if (size := ONE_PROCESS.ranks.size) > 1:
            raise OptionError(
                f"this process is one of {size} ranks, and each would compute another direction, so that the "
                f"replicas would diverge. Nothing was written. Pass group=gradhomog.Ranks('{over}') to homogenize the "
                "rows of all ranks."
            )
        return ONE_PROCESS
    ranks = group if isinstance(group, Ranks) else Ranks(over, group)
    if not isinstance(ranks.group, dist.ProcessGroup | None):
        raise OptionError(
            f"`group` must be a process group with this process, gradhomog.Ranks or None; got {group!r}. Processes "
            "that are not members of the group must not take its steps."
        )
    return GroupCommunicator(ranks) if ranks.size > 1 else Communicator(ranks)


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
