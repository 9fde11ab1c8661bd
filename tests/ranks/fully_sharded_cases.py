"""Functions that run on every rank of a process group, with models that `fully_shard` splits over the ranks."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradhomog
from gradhomog import GradhomogError, Ranks
from tests.autograd.networks import take_step
from tests.ranks.cases import STEPS, Model, batches_of, data, losses_of, part_of
from tests.ranks.recording import recorded

WHOLE = MixedPrecisionPolicy()


def mesh_of(shape: Sequence[int] | None) -> DeviceMesh:
    """Return a mesh of all ranks: one dimension, or replicas × shards."""
    if shape is None:
        return init_device_mesh("cpu", (dist.get_world_size(),))
    return init_device_mesh("cpu", tuple(shape), mesh_dim_names=("replicate", "shard"))


def sharded_model(
    mesh: Sequence[int] | None = None, policy: MixedPrecisionPolicy = WHOLE, layers: Sequence[int] = (0, 2),
    width: int = 5, heads: bool = True,
) -> Model:  # fmt: skip
    """Return a model of which some layers are sharded, and then the rest, with or without the heads."""
    model, devices = Model(width=width), mesh_of(mesh)
    for layer in layers:
        fully_shard(model.encoder[layer], mesh=devices, mp_policy=policy)
    fully_shard(model if heads else model.encoder, mesh=devices, mp_policy=policy)
    return model


def losses(model: Model, x: Tensor, y: Tensor) -> list[Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*returned a view tensor")  # outputs are not modified in place
        return losses_of(model(x), y)


def full(gradients: Sequence[Any]) -> list[Tensor]:
    """Return DTensors as whole tensors; other tensors unchanged."""
    return [gradient if type(gradient) is Tensor else gradient.full_tensor() for gradient in gradients]


def steps(
    text: str, sizes: Sequence[int], *, call: str = "backward", mesh: Sequence[int] | None = None,
    gather: bool = False, bfloat16: bool = False, layers: Sequence[int] | None = (0, 2), per: Any = "model",
    heads: bool = True, in_metric: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the gradients of some steps of Adam with `sizes[r]` examples on rank r, and the state of the pipeline.

    Without `layers` the model is not sharded.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bfloat16 else WHOLE
    (x, y), pipe = data(), gradhomog.pipeline(text)
    model = Model() if layers is None else sharded_model(mesh, policy, layers, heads=heads)
    shared = dict(model.encoder.named_parameters())
    part = part_of(sizes)
    x, y = x[part], y[part]
    group = Ranks("batch", examples=len(x), gather=gather) if len(sizes) > 1 else None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        batches = batches_of(call, lambda x, y: losses(model, x, y), x, y)
        take_step(call, batches, pipe, parameters=shared, group=group, per=per, metric=optimizer if in_metric else None)
        found += [gradient.clone() for gradient in full(model.gradients())]
        optimizer.step()
    return {"gradients": found, "state": pipe.state_dict()}


def a_group_of_one_rank() -> list[Tensor]:
    """Return the gradients of a step of a model that is sharded over a group of this rank only."""
    group = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    (x, y), model = data(), Model()
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    shared = {name: value for name, value in model.named_parameters() if name.startswith("encoder.")}
    gradhomog.backward(losses(model, x, y), gradhomog.pipeline("upgrad"), parameters=shared, group=group)
    gradients: list[Any] = model.gradients()
    return [gradient.to_local() for gradient in gradients]


def gradients_before_remain() -> list[Tensor]:
    """Return the difference of the gradients of two accumulated steps and twice those of one."""
    (x, y), model = data(), sharded_model()
    pipe = gradhomog.pipeline("pcgrad")
    gradhomog.backward(losses(model, x, y), pipe, parameters=model.encoder, group=Ranks("batch"))
    once = full(model.gradients())
    gradhomog.backward(losses(model, x, y), pipe, parameters=model.encoder, group=Ranks("batch"))
    return [twice - 2 * one for one, twice in zip(once, full(model.gradients()), strict=True)]


def bytes_sent(text: str, width: int) -> int:
    """Return the bytes that gradhomog sends in a step; the hooks of `fully_shard` call other functions."""
    (x, y), model = data(), sharded_model(width=width)
    parts, group = losses(model, x, y), Ranks("batch")
    with recorded() as found:
        step = gradhomog.backward(parts, gradhomog.pipeline(text), parameters=model.encoder, group=group)
    assert all(type(part).__name__ == "DTensor" for part in step.direction.values())
    return sum(found.sent.values())


def another_number_of_batches() -> str:
    """Return the error of an accumulated step to which rank 1 adds one batch less."""
    (x, y), model = data(), sharded_model()
    shared = dict(model.encoder.named_parameters())
    batches = [losses(model, x, y) for _ in range(2)]  # the forward passes of all ranks, which gather parameters
    try:
        with gradhomog.accumulated(gradhomog.pipeline("uw"), parameters=shared, group=Ranks("batch")) as several:
            for batch in batches[dist.get_rank() :]:
                several.add(batch)
    except GradhomogError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
