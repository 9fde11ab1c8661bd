"""How a learner is run: engine, compilation, precision, batch normalization, recomputation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch
from torch import nn

from gradhomog import OptionError
from gradhomog_adapters._network.norm import Norm, SupportStatistics, policy
from gradhomog_adapters._network.twice import differentiable_twice

Engine = Literal["auto", "loop", "vmap"]
Compile = bool | str
Autocast = Literal["bfloat16"] | None


class ExecutionOptions(TypedDict, total=False):
    """The fields of `Execution`, as keywords of every learner."""

    engine: Engine
    compile: Compile
    autocast: Autocast
    norm: Norm
    recompute: bool


class ExecutionOptionsExceptNorm(TypedDict, total=False):
    """The same for a learner that has an option `norm` of its own."""

    engine: Engine
    compile: Compile
    autocast: Autocast
    recompute: bool


@dataclass(frozen=True)
class Execution:
    """How a learner forms its rows. All learners accept one, `execution=Execution(...)`, or its fields as keywords.

    `engine`, `compile` and `recompute` do not change the rows, up to rounding; `autocast` changes their precision, and
    `norm` is a choice of model.

    Args:
        engine: `"loop"`: one task after the other; the graph of a task is freed before the next is built. `"vmap"`: all
            tasks at once, `vmap(grad(task))`; up to tens of times faster for small networks, slower and with more
            memory for convolutions. `"auto"` chooses by the network; it uses the loop where a homogenizer acts before
            rows exist (`isi`, `rotate`) and where PyTorch cannot vectorize the network, the loss or the inner
            optimizer. Under `"vmap"` dropout draws other numbers.
        compile: compile the vectorized engine with `torch.compile`: true, or the name of a backend. The first step of
            each shape takes half a minute, longer where many inner steps are unrolled.
        autocast: `"bfloat16"`: forward passes run in that dtype where PyTorch considers it safe. Rows of second order
            lose accuracy (`docs/results/engines.md`). The vectorized engine cannot run batch normalization in it
            (PyTorch 2.13): use the loop.
        norm: the statistics of batch normalization. `"batch"`: those of each batch, at meta-test too: MAML's published
            results; transductive, as queries depend on each other. `"support"`: for queries those of the support set
            under the adapted parameters, with their gradient; inductive. `"frozen"`: the running statistics that the
            network came with. Running statistics are never written, and buffers are copied for each task.
        recompute: keep the arguments of each inner step, not its graph, and run the step again in the backward pass, so
            that memory does not grow with the number of inner steps. Takes 1.1 times as long for four convolutional
            blocks of 32 filters, up to 1.8 times as long for small networks, and forms one row after the other. A
            learner of your own decorates its inner step by `support.recomputed`. Where inner steps leave the encoder
            alone (ANIL), it then runs in each of them, and dropout draws a mask for each. Without effect on learners
            that do not differentiate through inner steps.

    Raises:
        OptionError: an unknown value, or two that exclude each other.

    >>> Execution(engine="vmap", norm="support")
    Execution(engine='vmap', compile=False, autocast=None, norm='support', recompute=False)
    """

    engine: Engine = "auto"
    compile: Compile = False
    autocast: Autocast = None
    norm: Norm = "batch"
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ("auto", "loop", "vmap"):
            raise OptionError(
                f"`engine` must be 'auto', 'loop' or 'vmap' (of gradients: the gradient of a vmap is wrong for several "
                f"normalizations); got {self.engine!r}."
            )
        if not isinstance(self.compile, bool) and self.compile not in torch.compiler.list_backends(exclude_tags=()):
            backends = ", ".join(torch.compiler.list_backends(exclude_tags=()))
            raise OptionError(
                f"`compile` must be true, false or a backend of torch.compile ({backends}); got {self.compile!r}."
            )
        if self.compile and self.engine == "loop":
            raise OptionError(
                f"`compile` is of the vectorized engine; got compile={self.compile!r} with engine='loop'. Use 'vmap'."
            )
        if self.autocast not in (None, "bfloat16"):
            raise OptionError(
                f"`autocast` must be None or 'bfloat16' (float16 has no gradients here); got {self.autocast!r}."
            )
        if self.norm not in ("batch", "support", "frozen"):
            raise OptionError(f"`norm` must be 'batch', 'support' or 'frozen'; got {self.norm!r}.")
        if self.recompute:
            self.check_one_after_the_other("`recompute` works on")

    @classmethod
    def of(cls, execution: Execution | None, keywords: Mapping[str, Any]) -> Execution:
        """The object that a learner was given, or one made of its keywords.

        Raises:
            OptionError: both were given, or `execution` is something else.
            TypeError: a keyword that is no field.
        """
        if unknown := sorted(set(keywords) - set(cls.__dataclass_fields__)):
            raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
        if execution is None:
            return cls(**keywords)
        if not isinstance(execution, cls):
            raise OptionError(f"`execution` must be an Execution; got {execution!r}.")
        if keywords:
            raise OptionError(f"`{next(iter(keywords))}` is a field of `execution`, which was given too. Give one.")
        return execution

    def check_one_after_the_other(self, requirement: str) -> None:
        """Raise OptionError if the vectorized engine is chosen; `requirement` names what excludes it, and its verb."""
        if self.engine == "vmap" or self.compile:
            raise OptionError(f"{requirement} one task after the other. Use engine='loop', not compiled.")

    @contextmanager
    def mode(self, modules: Iterable[nn.Module], device: torch.device) -> Iterator[SupportStatistics]:
        """Within the context a network runs with this normalization and precision, twice differentiable."""
        modules = list(modules)
        with ExitStack() as stack:
            statistics = stack.enter_context(policy(modules, self.norm))
            stack.enter_context(differentiable_twice(modules))
            if self.autocast is not None:
                stack.enter_context(torch.autocast(device.type, getattr(torch, self.autocast)))
            yield statistics
