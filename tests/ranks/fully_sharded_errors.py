"""Steps with `fully_shard` that cannot be taken, and the error of each rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

import gradhomog
from gradhomog import GradhomogError, Pipeline, Ranks
from tests.ranks.cases import Model, data
from tests.ranks.fully_sharded_cases import losses, mesh_of, sharded_model


@dataclass
class Call:
    """The arguments of `gradhomog.backward` for `model`, which a case makes wrong."""

    model: Model
    losses: list[Tensor | None]
    parameters: Any
    pipe: Pipeline
    options: dict[str, Any] = field(default_factory=lambda: {"group": Ranks("batch")})

    @classmethod
    def of(cls, model: Model, parameters: Any = None) -> Call:
        return cls(model, [*losses(model, *data())], parameters or model.encoder, gradhomog.pipeline("pcgrad"))

    def times(self, task: int, factor: float) -> None:
        loss = self.losses[task]
        assert loss is not None
        self.losses[task] = factor * loss

    def error(self) -> str:
        """Return the class and message of the error, with its notes."""
        try:
            gradhomog.backward(self.losses, self.pipe, parameters=self.parameters, **self.options)
        except GradhomogError as error:
            assert all(one.grad is None for one in self.model.encoder.parameters()), "gradients were written"
            return f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', []))}"
        return "no error"


@dataclass(frozen=True)
class Case:
    """A function that returns a wrong call, and patterns of the errors of rank 0 and rank 1."""

    call: Callable[[], Call]
    first: str
    second: str


def absent_on_rank_1() -> Call:
    call = Call.of(sharded_model())
    if dist.get_rank() == 1:
        call.losses[2] = None
    return call


def not_finite_on_rank_1() -> Call:
    call = Call.of(sharded_model())
    if dist.get_rank() == 1:
        call.times(1, torch.inf)
    return call


def without_examples_not_finite() -> Call:
    call = Call.of(sharded_model())
    if dist.get_rank() == 1:
        call.times(1, torch.nan)
        call.options["group"] = Ranks("batch", examples=[1, 0, 1])
    return call


def raises_on_rank_1() -> Call:
    call = Call.of(sharded_model())
    if dist.get_rank() == 1:
        call.losses[0] = data()[0]
    return call


def pipeline(text: str, **options: Any) -> Callable[[], Call]:
    def call() -> Call:
        found = Call.of(sharded_model())
        found.pipe = gradhomog.pipeline(text, **options)
        return found

    return call


def option(**options: Any) -> Callable[[], Call]:
    def call() -> Call:
        found = Call.of(sharded_model())
        found.options |= options
        return found

    return call


def part_of_the_model() -> Call:
    model = Model()
    fully_shard(model.encoder[0], mesh=mesh_of(None))
    return Call.of(model, dict(model.encoder.named_parameters()))


def listed_after_the_forward_pass(layers: list[int]) -> Callable[[], Call]:
    return lambda: Call.of(sharded_model(layers=layers))


def no_synchronization(module: str, **options: Any) -> Callable[[], Call]:
    def call() -> Call:
        model = sharded_model(**options)
        model.get_submodule(module).set_requires_gradient_sync(False)  # type: ignore[operator]
        return Call.of(model)

    return call


def flattened(use_orig_params: bool, whole: bool) -> Callable[[], Call]:
    """A model in FSDP1, of which the whole or the encoder is wrapped."""

    def call() -> Call:
        model = Model()
        options: Any = {"device_id": torch.device("cpu"), "use_orig_params": use_orig_params}
        if whole:
            wrapped: Any = FullyShardedDataParallel(model, **options)
            return Call(model, [*losses(wrapped, *data())], model.encoder, gradhomog.pipeline("pcgrad"))
        model.encoder = FullyShardedDataParallel(model.encoder, **options)  # type: ignore[assignment]
        return Call.of(model)

    return call


POLICIES = [{}, {"policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)}]  # gradients are stored in other places

CASES = {
    "absent on rank 1": Case(
        absent_on_rank_1, "RankError.*same present tasks; rank 1 differs.*0 . output", "RankError"
    ),
    "not finite on rank 1": Case(
        not_finite_on_rank_1, "NonfiniteError: task 1 is not finite.*zero_grad", "NonfiniteError: task 1"
    ),
    "no examples of a loss that is not finite": Case(
        without_examples_not_finite, "RankError: rank 1 raised", "OptionError: the loss of task 1 must"
    ),
    "raises on rank 1": Case(
        raises_on_rank_1, "RankError: rank 1 raised", "OptionError: the loss of task 0 must be a real scalar"
    ),
    "drop": Case(pipeline("pcgrad", nonfinite="drop"), "OptionError.*nonfinite='drop'", "OptionError"),
    "reads rows": Case(
        pipeline("trimmed_mean"), "OptionError: trimmed_mean reads rows.*gather=True", "OptionError"
    ),
    "weighted heads": Case(option(heads="weighted"), "OptionError.*heads='weighted'", "OptionError"),
    "local": Case(option(group=Ranks(local=True)), "OptionError.*require Ranks.'batch'", "OptionError"),
    "tasks": Case(option(group=Ranks("tasks")), "OptionError.*require Ranks.'batch'", "OptionError"),
    "features": Case(
        option(features=torch.zeros(1, requires_grad=True)), "OptionError: `features` must be omitted", "OptionError"
    ),
    "examples of no rank": Case(
        option(group=Ranks("batch", examples=[1, 0, 1])),
        "OptionError: `examples` must be positive for every task", "OptionError",
    ),
    "part of the model": Case(
        part_of_the_model, "OptionError: either all or none.*'2.weight' is not", "OptionError"
    ),
    "listed after the forward pass, one layer sharded": Case(
        listed_after_the_forward_pass([0]), "OptionError: either all or none.*list them once before", "OptionError"
    ),
    "listed after the forward pass": Case(
        listed_after_the_forward_pass([]),
        "OptionError: `parameters` must be the DTensors.*list them once before", "OptionError",
    ),
    **{
        f"no synchronization of {module or 'the model'} {options}": Case(
            no_synchronization(module, **options), "OptionError: fully_shard must average.*set_requires_gradient_sync",
            "OptionError",
        )
        for module in ("", "encoder.0") for options in POLICIES
    },
    **{
        f"FSDP1, use_orig_params={original}, whole={whole}": Case(
            flattened(original, whole), "OptionError: FullyShardedDataParallel .FSDP1. is not supported", "OptionError"
        )
        for original in (False, True) for whole in (False, True)
    },
}  # fmt: skip


def error(name: str) -> str:
    """Return the error of a case on this rank."""
    return CASES[name].call().error()
