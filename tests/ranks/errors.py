"""Steps that cannot be taken, with and without `fully_shard`, and the error of each rank."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

import gradhomog
from gradhomog import GradhomogError, Ranks
from tests.autograd.networks import take_step
from tests.ranks.cases import Model, data
from tests.ranks.fully_sharded_cases import losses, mesh_of, sharded_model

Change = Callable[[dict[str, Any]], object]
"""Changes the arguments of `gradhomog.backward`."""


def part_of_the_model() -> Model:
    model = Model()
    fully_shard(model.encoder[0], mesh=mesh_of(None))
    return model


def not_synchronized(module: str, policy: MixedPrecisionPolicy) -> Model:
    model = sharded_model(policy=policy)
    model.get_submodule(module).set_requires_gradient_sync(False)  # type: ignore[operator]
    return model


def flattened(use_orig_params: bool, whole: bool) -> nn.Module:
    """A model in FSDP1, of which the whole or the encoder is wrapped."""
    model, options = Model(), {"device_id": torch.device("cpu"), "use_orig_params": use_orig_params}
    if whole:
        return FullyShardedDataParallel(model, **options)  # type: ignore[arg-type]
    model.encoder = FullyShardedDataParallel(model.encoder, **options)  # type: ignore[arg-type, assignment]
    return model


def partitioned() -> Model:
    """A model with the attributes and the released parameters of DeepSpeed ZeRO-3, which is not installed."""
    model = Model()
    for index, parameter in enumerate(model.parameters()):
        parameter.ds_id, parameter.ds_shape = index, parameter.shape  # type: ignore[attr-defined]
    return model


def release(call: dict[str, Any]) -> None:
    for parameter in call["parameters"].parameters():
        parameter.data = torch.empty(0)


def times(task: int, factor: float) -> Change:
    return lambda call: call["losses"].__setitem__(task, factor * call["losses"][task])


def options(**options: Any) -> Change:
    return lambda call: call.update(options)


def both(first: Change, second: Change) -> Change:
    return lambda call: [first(call), second(call)]


def on_rank_1(*changes: Change) -> Change:
    return lambda call: [change(call) for change in changes if dist.get_rank() == 1]


def one_loss(task: int, loss: Any) -> Change:
    return lambda call: call["losses"].__setitem__(task, loss)


def each_loss(function: Callable[[Any], Any]) -> Change:
    return lambda call: call.update(losses=[function(loss) for loss in call["losses"]])


def failing_pass(call: dict[str, Any]) -> None:
    def fail(gradient: torch.Tensor) -> None:
        raise GradhomogError("this pass fails")

    call["losses"][1].register_hook(fail)


def per(groups: Any, **more: Any) -> Change:
    return options(per=groups, pipe=gradhomog.pipeline("upgrad"), **more)


def in_metric_of_soap(call: dict[str, Any]) -> None:
    from pytorch_optimizer import SOAP  # a second, if it were imported with the tests

    call["metric"] = SOAP(call["parameters"].parameters())


REDUCED_IN_FLOAT32 = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # gradients are stored in other places
NO_EXAMPLES = options(group=Ranks("batch", examples=[1, 0, 1]))

WITHOUT_GROUP, OTHER_OPTIONS = "OptionError.*one of 2 ranks", "RankError: all ranks must have the same options"

REPLICATED: dict[str, tuple[Change, str, str]] = {
    "a head is absent on rank 1": (
        on_rank_1(one_loss(2, None)), "RankError.*same heads; rank 1 differs.*0 . head", "RankError",
    ),
    "no group": (options(group=None), f"{WITHOUT_GROUP}.*group=gradhomog.Ranks", WITHOUT_GROUP),
    "loss without group": (options(group=None, call="loss"), WITHOUT_GROUP, WITHOUT_GROUP),
    "accumulated without group": (options(group=None, call="accumulated"), WITHOUT_GROUP, WITHOUT_GROUP),
    "no graph on rank 1": (
        on_rank_1(each_loss(torch.Tensor.detach)),
        "RankError: rank 1 raised an error", "OptionError: at least one loss must have a graph",
    ),
    "another pipeline on rank 1": (
        on_rank_1(options(pipe=gradhomog.pipeline("upgrad"))), "RankError.*rank 1 differs from rank 0",
        "RankError.*rank 1 differs",
    ),
    "not finite on rank 1": (on_rank_1(times(1, torch.inf)), *["NonfiniteError: task 1 is not finite"] * 2),
    **{
        f"a pass fails on rank 1, {text}": (
            both(options(pipe=gradhomog.pipeline(text)), on_rank_1(failing_pass)),
            "RankError: rank 1 raised an error in a backward pass", "^GradhomogError: this pass fails",
        )
        for text in ("pcgrad", "none")
    },
    "other groups": (
        both(per("layer"), on_rank_1(per("tensor"))), OTHER_OPTIONS, "RankError",
    ),
    "an incomplete group on rank 1": (
        both(per("layer"), on_rank_1(per({"first": "0.*"}))),
        "RankError: rank 1 raised", "OptionError: `per` must",
    ),
    "accumulated groups that are wrong on rank 1": (
        both(
            options(per={"all": "*"}, call="accumulated"), on_rank_1(options(per={"all": "*", "none": "decoder.*"})),
        ),
        "RankError: rank 1 raised an error", "OptionError: pattern 'decoder",
    ),
    **{
        name: (change, f"OptionError.*{text}", "OptionError")
        for name, change, text in [
            ("reads rows", options(pipe=gradhomog.pipeline("trimmed_mean")), "trimmed_mean reads rows.*gather=True"),
            ("heads with tasks", options(group=Ranks("tasks")), "with Ranks.'tasks'.*Pass all parameters"),
            ("no parameters", options(parameters=None), "across ranks `parameters` is required"),
            ("examples of 2 tasks", options(group=Ranks("batch", examples=[1, 2])), "each of the 3 tasks; got 2"),
            ("an incomplete group", per({"first": "0.*"}), "`per` must have a pattern"),
            (
                "groups at the level of features",
                per("layer", level="features", features=torch.zeros(1, requires_grad=True)), "if level='features'",
            ),
            ("groups with weighted heads", per("layer", heads="weighted"), "per='layer' has weights"),
            *(
                (
                    f"accumulated with {count} domains",
                    options(call="accumulated", domains=[f"domain {index}" for index in range(count)]),
                    "`domains` must contain one name for each of the 3 tasks",
                )
                for count in (2, 4)
            ),
        ]
    },
}  # fmt: skip
"""For each case of replicas a change of a valid call, and patterns of the errors of rank 0 and rank 1."""

SHARDED: dict[str, tuple[Callable[[], Any], Change | None, str, str]] = {
    "absent on rank 1": (
        sharded_model, on_rank_1(one_loss(2, None)),
        "RankError.*same present tasks; rank 1 differs.*0 . output", "RankError",
    ),
    "not finite on rank 1": (
        sharded_model, on_rank_1(times(1, torch.inf)),
        "NonfiniteError: task 1 is not finite.*zero_grad", "NonfiniteError: task 1",
    ),
    "no examples of a loss that is not finite": (
        sharded_model, on_rank_1(times(1, torch.nan), NO_EXAMPLES),
        "RankError: rank 1 raised", "OptionError: the loss of task 1 must",
    ),
    "raises on rank 1": (
        sharded_model, on_rank_1(one_loss(0, torch.ones(2))),
        "RankError: rank 1 raised", "OptionError: the loss of task 0 must be a real scalar",
    ),
    **{
        name: (model, change, f"OptionError.*{text}", "OptionError")
        for name, model, change, text in [
            ("drop", sharded_model, options(pipe=gradhomog.pipeline("pcgrad", nonfinite="drop")), "nonfinite='drop'"),
            ("reads rows", sharded_model, options(pipe=gradhomog.pipeline("trimmed_mean")), "reads rows.*gather=True"),
            ("weighted heads", sharded_model, options(heads="weighted"), "heads='weighted'"),
            ("local", sharded_model, options(group=Ranks(local=True)), "require Ranks.'batch'"),
            ("tasks", sharded_model, options(group=Ranks("tasks")), "require Ranks.'batch'"),
            ("features", sharded_model, options(features=torch.zeros(1, requires_grad=True)), "must be omitted"),
            ("the metric of SOAP", sharded_model, in_metric_of_soap, "must not be SOAP for parameters split"),
            ("examples of no rank", sharded_model, NO_EXAMPLES, "`examples` must be positive for every task"),
            ("part of the model", part_of_the_model, None, "either all or none.*'2.weight' is not"),
            (
                "listed after the forward pass, one layer sharded", lambda: sharded_model(layers=[0]), None,
                "either all or none.*list them once before",
            ),
            (
                "listed after the forward pass", lambda: sharded_model(layers=[]), None,
                "`parameters` must be the DTensors.*list them once before",
            ),
            *(
                (
                    f"no synchronization of {module or 'the model'} {policy}",
                    lambda module=module, policy=policy: not_synchronized(module, policy), None,
                    "fully_shard must average.*set_requires_gradient_sync",
                )
                for module in ("", "encoder.0") for policy in (MixedPrecisionPolicy(), REDUCED_IN_FLOAT32)
            ),
            *(
                (
                    f"FSDP1, use_orig_params={original}, whole={whole}",
                    lambda original=original, whole=whole: flattened(original, whole), None,
                    "FullyShardedDataParallel .FSDP1. is not supported",
                )
                for original in (False, True) for whole in (False, True)
            ),
            ("DeepSpeed ZeRO-3", partitioned, release, "DeepSpeed ZeRO-3 is not supported"),
        ]
    },
}  # fmt: skip
"""For each case of `fully_shard` a model, and the same."""

CASES: dict[str, tuple[Callable[[], Any], Change | None, str, str]] = {
    **{name: (Model, *case) for name, case in REPLICATED.items()},
    **{f"sharded: {name}": case for name, case in SHARDED.items()},
}


def error(name: str) -> str:
    """Return the class and message of a case's error on this rank, with its notes."""
    make, change, *_ = CASES[name]
    model = make()
    encoder = model.encoder
    call = {
        "parameters": dict(encoder.named_parameters()) if make is part_of_the_model else encoder,
        "losses": losses(model, *data()), "pipe": gradhomog.pipeline("pcgrad"), "group": Ranks("batch"),
    }  # fmt: skip
    if change is not None:
        change(call)
    how, batch = call.pop("call", "backward"), call.pop("losses")
    try:
        take_step(how, [batch], **call)
    except GradhomogError as caught:
        unchanged = model if make is Model else encoder
        assert all(one.grad is None for one in unchanged.parameters()), "gradients were written"
        return f"{type(caught).__name__}: {caught} {' '.join(getattr(caught, '__notes__', []))}"
    return "no error"
