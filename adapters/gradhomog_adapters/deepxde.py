"""`homogenize`: homogenize the gradients of a DeepXDE model's losses, PDE residuals and conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor

import gradhomog
from gradhomog import OptionError, Pipeline, check_optimizer
from gradhomog_adapters._frameworks import FunctionOfAll, ReceivesReports, check_pipeline, line_search_error

try:
    import deepxde
except ImportError as error:
    raise ImportError("gradhomog_adapters.deepxde requires DeepXDE: pip install 'gradhomog[deepxde]'.") from error

__all__ = ["TrainStep", "homogenize"]


def homogenize(model: Any, pipe: Pipeline, *, names: Sequence[str] | None = None) -> TrainStep:
    """Replace the train step of a compiled model: the losses' gradients are homogenized before the optimizer's step.

    θ.grad = Σ_i (C J)_i + ∂R/∂θ,  J_i = w_i ∂L_i/∂θ, with DeepXDE's `loss_weights` w and its L1 regularization R

    Call it after each `model.compile(...)`, with the same pipeline, which holds the homogenizers' states. `compile`
    sets DeepXDE's own train step, so that a later phase without this call, such as L-BFGS, is plain DeepXDE. All else
    remains DeepXDE's: `model.train`, callbacks, resampling, learning-rate decay, `train_state`, history, `save`.

    Args:
        model: a `deepxde.Model` with the PyTorch backend, after `compile` with a first-order optimizer.
        pipe: the pipeline. Homogenizers that read features or residuals are not supported.
        names: one name per loss, in DeepXDE's order; they are the domains of the rows. By default the residuals are
            `pde`, the conditions have the names of their classes, and equal names are numbered: `pde 0`, `pde 1`,
            `DirichletBC`, `IC`. Losses of other data than PDEs are `loss 0`, `loss 1`.

    Returns:
        The train step. Its `report` describes the last step, its `names` the losses.

    Conventions:
        1. DeepXDE trains with the sum of the losses, so the mean of the homogenized rows is multiplied by their number:
           the empty pipeline computes DeepXDE's gradient, up to rounding, with the same rates and weight decay.
        2. `loss_weights` are applied first: homogenizers receive the weighted losses and the rows w_i ∂L_i/∂θ. Methods
           that are invariant under the scale of a row ignore them. A loss of weight 0 is computed and displayed, but is
           absent from the step: its row of zeros would be the minimum-norm direction of `mgda`, and end the training.
        3. θ are the parameters of `model.net`, the `external_trainable_variables`, which are named `external 0`, …, and
           further parameters of a given optimizer, `optimizer 0`, ….
        4. L1 regularization is not a task: its gradient is added to the direction. L2 is weight decay of the optimizer.
        5. With `deepxde.config` set to mixed precision, losses are computed in half precision, as in DeepXDE; gradients
           are combined outside of autocast.

    The optimizer calls the step's closure once. `model.save` does not contain the state of `pipe`: save
    `pipe.state_dict()` beside it.

    Raises:
        OptionError: the backend is not PyTorch; the model is not compiled; its optimizer is L-BFGS or NNCG; the
            pipeline reads features or residuals; two `names` are equal. During training: the number of `names` differs
            from the number of losses; `compile` was called after this function and before training; see also
            `gradhomog.backward`.
        NonfiniteError: during training, a loss or its gradient is not finite; the message names the loss. DeepXDE alone
            would stop at its next display. With `nonfinite="drop"` in the pipeline, that loss is omitted from the sum.

    Warns:
        MomentumWarning: the optimizer averages directions, although a homogenizer such as `tracked` averages rows.

    Cost: see `gradhomog.backward`; one backward pass per loss, or one in total if the pipeline reads losses only.

    >>> import deepxde as dde
    >>> line = dde.geometry.Interval(-1, 1)
    >>> zero = dde.icbc.DirichletBC(line, lambda x: 0, lambda x, on_boundary: on_boundary)
    >>> data = dde.data.PDE(line, lambda x, u: dde.grad.hessian(u, x) + 1, zero, num_domain=8, num_boundary=2)
    >>> model = dde.Model(data, dde.nn.FNN([1, 8, 1], "tanh", "Glorot uniform"))
    >>> model.compile("adam", lr=1e-3, verbose=0)
    >>> step = homogenize(model, gradhomog.pipeline("upgrad"))
    >>> history, _ = model.train(iterations=3, verbose=0)
    >>> step.names, step.report.cosines.shape
    (('pde', 'DirichletBC'), torch.Size([2, 2]))
    """
    if deepxde.backend.backend_name != "pytorch":
        raise OptionError(
            f"DeepXDE's backend must be pytorch; got {deepxde.backend.backend_name}. Set DDE_BACKEND=pytorch before "
            "deepxde is imported."
        )
    if not isinstance(model, deepxde.Model):
        raise OptionError(f"`model` must be a deepxde.Model; got {type(model).__name__}.")
    check_pipeline(pipe, "DeepXDE")
    if model.opt is None:
        raise OptionError(
            "`model` must be compiled: call model.compile('adam', lr=1e-3) before homogenize(model, pipe)."
        )
    if isinstance(model.opt, torch.optim.LBFGS) or deepxde.optimizers.is_external_optimizer(model.opt_name):
        advice = "Train this phase without homogenize(model, pipe): after model.compile, the train step is DeepXDE's."
        raise line_search_error("a homogenized model", type(model.opt).__name__, advice)
    if names is not None and (isinstance(names, str) or len({*names}) != len(names)):
        raise OptionError(f"`names` must be a list of different names, one for each loss; got {names!r}.")
    check_optimizer(model.opt, pipe)
    step = TrainStep(model, pipe, names)
    model.train_step, model.compile = step, MethodType(_compile_again, model)
    return step


def _compile_again(model: Any, *args: Any, **options: Any) -> None:
    """Compile a model; the first training step raises if the replaced one was never used."""
    unused = isinstance(model.train_step, TrainStep) and model.train_step.report is None
    del model.compile
    model.compile(*args, **options)
    if unused:
        model.train_step = _raise_not_homogenized


def _raise_not_homogenized(*args: Any) -> None:
    raise OptionError(
        "model.compile was called after homogenize(model, pipe) and has replaced its train step, so training would be "
        "plain DeepXDE. Call homogenize after model.compile; for plain training call model.compile once more."
    )


class TrainStep(ReceivesReports):
    """The train step that `homogenize` sets in a model.

    Attributes:
        pipe: the pipeline.
        names: the names of the losses; empty before the first step, unless they were given.
        report: the result of the last step, None before the first: weights and, if a homogenizer reads inner products,
            norms and cosines.
    """

    def __init__(self, model: Any, pipe: Pipeline, names: Sequence[str] | None) -> None:
        self._model, self.pipe = model, pipe
        self._names_given = names is not None
        self.names: tuple[str, ...] = tuple(names or ())

    def __call__(self, inputs: Any, targets: Any, auxiliary_vars: Any) -> None:
        """Take one step, as DeepXDE's own train step does."""
        model = self._model

        def closure() -> Tensor:
            parameters = self._parameters()
            losses = self._losses(_without_gradient(inputs, parameters), targets, auxiliary_vars)
            total = gradhomog.loss(
                losses, self.pipe, parameters=parameters, reduction="sum", report=self._receive
            ) + _l1(model.net)
            model.opt.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            return total

        model.opt.step(closure)
        if model.lr_scheduler is not None:
            model.lr_scheduler.step()

    def weights(self) -> dict[str, float]:
        """Return the factors of the weighted losses' gradients in the last step, by name; empty if rows were replaced.

        Losses that were absent, such as those that `tracked` did not choose, are not listed.
        """
        return self._weights()

    def _parameters(self) -> dict[str, Tensor]:
        model = self._model
        held = [parameter for group in model.opt.param_groups for parameter in group["params"]]
        found: dict[str, Tensor] = dict(model.net.named_parameters())
        for kind, values in (("external", model.external_trainable_variables), ("optimizer", held)):
            seen = {id(parameter) for parameter in found.values()}
            others = [value for value in values if id(value) not in seen]
            found.update({f"{kind} {i}": value for i, value in enumerate(others)})
        return found

    def _losses(self, inputs: Any, targets: Any, auxiliary_vars: Any) -> Mapping[str, Tensor | None]:
        """Return the weighted losses by name; None for a weight of 0.

        DeepXDE stacks them into one tensor, through which each backward pass would traverse the graphs of all losses.
        """
        model = self._model
        half = deepxde.config.mixed
        precision = torch.autocast(torch.get_default_device().type, torch.float16) if half else nullcontext()
        with _collected_losses(model.data) as collected, precision:
            model.outputs_losses_train(inputs, targets, auxiliary_vars)
        losses: list[Tensor | None] = [*collected]
        if model.loss_weights is not None:
            # A number is a weight of all losses. On the CPU, where the comparison does not synchronize.
            weights = torch.as_tensor(model.loss_weights, device="cpu").expand(len(collected))
            losses = [weight * loss if weight else None for weight, loss in zip(weights, collected, strict=True)]
        if not self._names_given:
            self.names = loss_names(model.data, len(losses))
        if len(self.names) != len(losses):
            raise OptionError(
                f"`names` must contain one name for each of the {len(losses)} losses; got {list(self.names)}. The "
                f"default is {list(loss_names(model.data, len(losses)))}."
            )
        return dict(zip(self.names, losses, strict=True))


def loss_names(data: Any, count: int) -> tuple[str, ...]:
    """Return names for the losses of a data set, in DeepXDE's order: residuals, then conditions."""
    if isinstance(data, (deepxde.data.PDEOperator, deepxde.data.PDEOperatorCartesianProd)):
        data = data.pde
    kinds = ["loss"] * count
    if isinstance(data, deepxde.data.PDE):
        kinds = ["pde"] * (count - len(data.bcs)) + [type(condition).__name__ for condition in data.bcs]
    return tuple(
        kind if kinds.count(kind) == 1 else f"{kind} {kinds[:place].count(kind)}" for place, kind in enumerate(kinds)
    )


@contextmanager
def _collected_losses(data: Any) -> Iterator[list[Tensor]]:
    """Collect the losses that `data.losses_train` returns within the context, before DeepXDE stacks them."""
    collected: list[Tensor] = []
    compute = data.losses_train

    def losses_train(*args: Any, **options: Any) -> Any:
        losses = compute(*args, **options)
        collected.extend(losses if isinstance(losses, list) else [losses])
        return losses

    replaced = {name: value for name, value in vars(data).items() if name == "losses_train"}  # if the user set it
    data.losses_train = losses_train
    try:
        yield collected
    finally:
        del data.losses_train
        vars(data).update(replaced)


def _without_gradient(inputs: Any, parameters: Mapping[str, Tensor]) -> Any:
    """Return the inputs as tensors that can be differentiated w.r.t. but do not receive a gradient themselves.

    DeepXDE evaluates all losses on one tensor of points, which requires grad. As a leaf that all losses share, it would
    need a gradient per loss: N backward passes also for methods that read losses only.
    """
    anchor = next((parameter for parameter in parameters.values() if parameter.requires_grad), None)
    if anchor is None:
        return inputs  # the error about frozen parameters follows
    if isinstance(inputs, tuple):
        return tuple(_without_gradient(part, parameters) for part in inputs)
    # It requires grad because the anchor does, to which no gradient is passed on.
    result: Tensor = FunctionOfAll.apply(torch.as_tensor(inputs).detach(), anchor)  # type: ignore[no-untyped-call]
    return result


def _l1(net: Any) -> Tensor | float:
    """Return DeepXDE's L1 regularization of a network; L2 regularization is weight decay."""
    if net.regularizer is None or net.regularizer[0] != "l1":
        return 0.0
    norm = torch.stack([parameter.abs().sum() for parameter in net.parameters()]).sum()
    return float(net.regularizer[1]) * norm
