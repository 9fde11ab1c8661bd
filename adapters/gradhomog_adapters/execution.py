"""`Execution`: the engine, compilation, precision, batch normalization and recomputation of a learner."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch
from torch import nn

from gradhomog import OptionError, ValidatedConstructor
from gradhomog_adapters._network_mode import Norm, SupportStatistics, enable_second_derivatives, norm_policy

Engine = Literal["auto", "loop", "vmap"]
Compile = bool | str
Autocast = Literal["bfloat16"] | None


class ExecutionOptionsExceptNorm(TypedDict, total=False):
    """The fields of `Execution` except `norm`, for learners with a different option `norm`."""

    engine: Engine
    compile: Compile
    autocast: Autocast
    recompute: bool


class ExecutionOptions(ExecutionOptionsExceptNorm, total=False):
    """The fields of `Execution`, as keywords of every learner."""

    norm: Norm


@dataclass(frozen=True)
class Execution(ValidatedConstructor):
    """Settings for the computation of rows, `learner.execution`. Learners accept the fields as keywords.

    `engine`, `compile` and `recompute` change the rows only by rounding errors. `autocast` changes their precision, and
    `norm` changes the model.

    Args:
        engine: `"loop"`: one task after the other; the graph of a task is freed before the next one is built. `"vmap"`:
            all tasks at once, `vmap(grad(task))` (`grad(vmap(task))` is wrong for several normalization layers); up to
            tens of times faster for small networks, slower and with more memory for convolutions; an OptionError in the
            step if PyTorch cannot vectorize the network, the loss or the inner optimizer. `"auto"`: selected by
            the network; it uses the loop if a homogenizer acts before rows exist (`isi`, `rotate`) or if PyTorch cannot
            vectorize the network, the loss or the inner optimizer. Dropout draws different masks under `"vmap"`.
        compile: compile the vectorized engine with `torch.compile(fullgraph=True)`: true, or the name of a backend. The
            first step for each shape of batches takes half a minute, and longer if many inner steps are unrolled. If
            PyTorch cannot compile the rows into one graph, or more than `torch._dynamo.config.recompile_limit` (8)
            shapes, the step raises an OptionError with the place, and never runs uncompiled instead.
        autocast: `"bfloat16"`: run forward passes in that dtype where PyTorch considers it safe. Second-order rows
            lose accuracy (`docs/results/engines.md`). The vectorized engine does not support batch normalization in
            bfloat16 (PyTorch 2.13): use the loop.
        norm: the statistics of batch normalization. `"batch"`: those of each batch, also at meta-test, as in MAML's
            published results; transductive, because queries depend on each other. `"support"`: queries use those of
            the support set under the adapted parameters, with their gradient; inductive. `"frozen"`: the running
            statistics of the given network. Running statistics are never updated; buffers are copied for each task.
        recompute: keep the arguments of each inner step instead of its graph, and run the step again in the backward
            pass, so that memory does not grow with the number of inner steps. Takes 1.1 times as long for four
            convolutional blocks of 32 filters, up to 1.8 times as long for small networks; rows are computed one after
            the other. A custom learner decorates its inner step with `support.recomputed`. If inner steps do not adapt
            the encoder (ANIL), the encoder then runs in each of them, and dropout draws a mask for each. No effect on
            learners that do not differentiate through inner steps.

    Raises:
        OptionError: a value is unknown, or two options exclude each other.

    >>> Execution(engine="vmap", norm="support")
    Execution(engine='vmap', compile=False, autocast=None, norm='support', recompute=False)
    """

    engine: Engine = "auto"
    compile: Compile = False
    autocast: Autocast = None
    norm: Norm = "batch"
    recompute: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.compile, bool) and self.compile not in torch.compiler.list_backends(exclude_tags=()):
            backends = ", ".join(torch.compiler.list_backends(exclude_tags=()))
            raise OptionError(
                f"`compile` must be true, false or a backend of torch.compile ({backends}); got {self.compile!r}."
            )
        if self.compile and self.engine == "loop":
            raise OptionError(
                f"`compile` requires engine='vmap' or 'auto'; got compile={self.compile!r} with engine='loop'."
            )
        if self.recompute:
            self.check_sequential("`recompute` processes")

    def check_sequential(self, requirement: str) -> None:
        """Raise OptionError for the vectorized engine; `requirement` starts the message: the option and a verb."""
        if self.engine == "vmap" or self.compile:
            raise OptionError(f"{requirement} one task after the other. Use engine='loop' and compile=False.")

    @contextmanager
    def mode(self, modules: Sequence[nn.Module], device: torch.device) -> Iterator[SupportStatistics]:
        """Context in which a network uses this normalization and precision and is twice differentiable."""
        precision = torch.autocast(device.type, getattr(torch, self.autocast)) if self.autocast else nullcontext()
        with norm_policy(modules, self.norm) as statistics, enable_second_derivatives(modules), precision:
            yield statistics
