"""`meta_step`: homogenize the task gradients of a custom TorchOpt loop."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torchopt
from torch import Tensor, nn
from torch.optim import Optimizer

from gradhomog import OptimizerMetric, OptionError, Pipeline
from gradhomog_adapters._frameworks import require_pipeline
from gradhomog_adapters._meta_step import MetaStep, Snapshot

__all__ = ["MetaStep", "meta_step"]


@contextmanager
def meta_step(
    net: nn.Module,
    pipe: Pipeline,
    *,
    inner: torchopt.MetaOptimizer | Sequence[torchopt.MetaOptimizer] = (),
    encoder: nn.Module | None = None,
    extra: Mapping[str, Tensor] | None = None,
    metric: Optimizer | None = None,
) -> Iterator[MetaStep]:
    """One meta-step of a loop with MetaSGD, MetaAdam and so on: homogenizes the rows of its tasks into `.grad`.

    row_i = ∇_ψ L_Q,i(ψ_i^K(ψ)), where ψ are the parameters of `net` and ψ_i^K those after the inner loop of task i.

    After each task, and after the block, parameters (the same objects, with the same values), buffers and the states of
    `inner` are restored, also on errors. If the block ends without an error, `.grad` of every parameter is replaced by
    the direction (None for parameters that no loss depends on, as after `backward`); otherwise no `.grad` is written.
    The step itself is `outer.step()`, after the block.

    Args:
        net: the module that the loop adapts. All its parameters with `requires_grad=True` have rows, under the names of
            `net.named_parameters()`. Several modules: `torch.nn.ModuleDict`.
        pipe: the pipeline, created once before the loop: it contains the state of homogenizers between steps.
        inner: the optimizers that adapt `net`, if they are created once and used in every task. Required for those with
            state: momentum, Adam, a schedule of rates (its count must be restored).
        encoder: the part of `net` that homogenizers such as `isi` attach to.
        extra: further trainable leaf tensors, by name, such as a tensor that is the rate of `inner`.
        metric: the outer optimizer: rows are homogenized in the metric of its step, see `gradhomog.OptimizerMetric`.

    Homogenizers that act within the network (`isi`, `rotate`) require two more lines; `add` reports a missing one:
    `step.query()` before the query pass, `features = step.transform(features)` between encoder and head.

    Faults of TorchOpt that this function corrects: buffers shared by tasks and modules left adapted (the parameter
    objects are stored, buffers are copied); the order of parameters (they are identified by name). Faults for which it
    raises: tied parameters that become different tensors, momentum with dampening in `inner`, an inner state that is
    not restored. Meta-gradients of `MetaAdam` are NaN where a gradient is exactly 0, unless `eps_root` is set.

    Raises:
        OptionError: see the arguments, `MetaStep.task` and `MetaStep.add`; no task was added.
        NonfiniteError, PluginRunError, DataError: see `Pipeline.combine`.

    Cost: as the loop itself, with one `autograd.grad` per task in place of `backward`. Memory: one row per task, a copy
    of parameters and buffers, and the graph of one task.

    >>> import gradhomog, torch, torchopt
    >>> _ = torch.manual_seed(0)
    >>> net, pipe = torch.nn.Linear(1, 1), gradhomog.pipeline("pcgrad")
    >>> inner, outer = torchopt.MetaSGD(net, lr=0.1), torch.optim.SGD(net.parameters(), lr=0.1)
    >>> x = torch.linspace(-1, 1, 5)[:, None]
    >>> with meta_step(net, pipe, inner=inner) as step:
    ...     for slope in (1.0, -1.0):
    ...         with step.task(domain="lines"):
    ...             inner.step((net(x) - slope * x).square().mean())
    ...             step.add((net(x) - slope * x).square().mean())
    >>> outer.step()
    >>> step.report.cosines.shape, step.report.names
    (torch.Size([2, 2]), ('lines', 'lines'))
    """
    optimizers = [*inner] if isinstance(inner, Sequence) else [inner]
    require_pipeline(pipe)
    attaching = [member.selector for member in pipe.requirements.attaching]
    if encoder is None and attaching:
        raise OptionError(
            f"`encoder` must be given, as {' and '.join(attaching)} attaches to it: meta_step(net, pipe, "
            "encoder=net.encoder), or the part of `net` that computes features."
        )
    if encoder is not None and all(module is not encoder for module in net.modules()):
        raise OptionError("`encoder` must be a module of `net`; this one is not part of it.")
    parameters: dict[str, Tensor] = {name: p for name, p in net.named_parameters() if p.requires_grad}
    for name, tensor in (extra or {}).items():
        if name in parameters or not (isinstance(tensor, Tensor) and tensor.is_leaf and tensor.requires_grad):
            raise OptionError(
                f"`extra` must contain leaf tensors that require grad, under names that `net` does not use; {name!r} "
                "is invalid. Create it with torch.tensor(..., requires_grad=True)."
            )
        parameters[name] = tensor
    if not parameters:
        raise OptionError("`net` must have a parameter with requires_grad=True, or `extra` a tensor; found none.")
    in_metric = None if metric is None else OptimizerMetric.of_step(metric, parameters, pipe, inspect=True)
    step = MetaStep(parameters, pipe, Snapshot(net, optimizers))
    with step.open_block(encoder):
        yield step
    step.finish(in_metric)
