"""`meta_step`: homogenize the task gradients of a TorchOpt loop that you wrote yourself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torchopt
from torch import Tensor, nn

from gradhomog import OptionError, Pipeline
from gradhomog_adapters._own_loop.meta_step import MetaStep
from gradhomog_adapters._own_loop.restoring import Restored

__all__ = ["MetaStep", "meta_step"]


@contextmanager
def meta_step(
    net: nn.Module,
    pipe: Pipeline,
    *,
    inner: torchopt.MetaOptimizer | Sequence[torchopt.MetaOptimizer] = (),
    encoder: nn.Module | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> Iterator[MetaStep]:
    """One meta-step of a loop with MetaSGD, MetaAdam and so on: a row per task, homogenized, written into `.grad`.

    row_i = ∇_ψ L_Q,i(ψ_i^K(ψ)), where ψ are the parameters of `net` and ψ_i^K what the loop makes of them in task i.

    After each task, and after the block, parameters (the same objects, with the same values), buffers and the states of
    `inner` are what they were before the block, whatever happens. If the block ends without an error, the direction
    is then in `.grad` of every parameter, in place of what was there (None where no loss depends on the parameter, as
    after `backward`); if it ends with one, no `.grad` is written. The step itself is `outer.step()`, after the block.

    Args:
        net: the module that the loop adapts; all its parameters with `requires_grad=True` are learnt, under the names
            of `net.named_parameters()`. Several modules: `torch.nn.ModuleDict`.
        pipe: made once, before the loop: what homogenizers carry from step to step lives in it.
        inner: the optimizers that adapt `net`, if they are made once and used in every task. Needed for those with
            state: momentum, Adam, a schedule of rates (whose count nothing else would put back).
        encoder: the part of `net` that homogenizers such as `isi` attach to.
        extra: further leaves that are learnt, by name, such as a tensor that is the rate of `inner`.

    Homogenizers that act within the network (`isi`, `rotate`) need two more lines, and `add` says which is missing:
    `step.query()` where the query pass begins, `features = step.transform(features)` between encoder and head.

    TorchOpt's faults that this takes care of: buffers shared by tasks and modules left adapted (parameters are held by
    object, buffers are handed out as copies); the order of parameters (they are told by name). Those it answers with an
    error: tied parameters that come apart, momentum with dampening in `inner`, an inner state that is not put back.
    Meta-gradients of `MetaAdam` are NaN where a gradient is exactly 0, unless you give it an `eps_root`.

    Raises:
        OptionError: see the arguments, `MetaStep.task` and `MetaStep.add`; no task was added.
        NonfiniteError, PluginRunError, DataError: as of `Pipeline.combine`.

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
    >>> step.report.cosines.shape, step.report.domains
    (torch.Size([2, 2]), ('lines', 'lines'))
    """
    optimizers = [*inner] if isinstance(inner, Sequence) else [inner]
    _check(net, pipe, encoder)
    parameters: dict[str, Tensor] = {name: p for name, p in net.named_parameters() if p.requires_grad}
    for name, tensor in (extra or {}).items():
        if name in parameters or not (isinstance(tensor, Tensor) and tensor.is_leaf and tensor.requires_grad):
            raise OptionError(
                f"`extra` must hold leaf tensors that require grad, under names that `net` does not use; {name!r} does "
                "not do. Make it with torch.tensor(..., requires_grad=True)."
            )
        parameters[name] = tensor
    if not parameters:
        raise OptionError("`net` must have a parameter with requires_grad=True, or `extra` a tensor; found none.")
    step = MetaStep(parameters, pipe, Restored(net, optimizers), bool(optimizers))
    with step.collecting(encoder):
        yield step
    step.finish()


def _check(net: nn.Module, pipe: Pipeline, encoder: nn.Module | None) -> None:
    if not isinstance(net, nn.Module):
        raise OptionError(f"`net` must be a torch.nn.Module; got {type(net).__name__}.")
    if not isinstance(pipe, Pipeline):
        raise OptionError(
            f"`pipe` must be a pipeline, made once before the loop: pipe = gradhomog.pipeline('pcgrad'); got {pipe!r}."
        )
    attaching = [member.selector for member in pipe.members if member.homogenizer.overrides("attach")]
    if encoder is None and attaching:
        raise OptionError(
            f"`encoder` must be given, as {' and '.join(attaching)} attaches to it: meta_step(net, pipe, "
            "encoder=net.encoder), or the part of `net` that makes features of inputs."
        )
    if encoder is not None and all(module is not encoder for module in net.modules()):
        raise OptionError("`encoder` must be a module of `net`; this one is not part of it.")
