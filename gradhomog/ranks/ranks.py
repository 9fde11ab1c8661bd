"""`Ranks`: the distribution of the tasks or the examples of a step over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist

from gradhomog.errors import OptionError
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
