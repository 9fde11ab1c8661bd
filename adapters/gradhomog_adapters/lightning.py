"""`HomogenizedLoss`: the loss of a LightningModule, with homogenized gradients."""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gradhomog import OptionError, Pipeline, Ranks, StepReport, check_optimizer
from gradhomog_adapters._frameworks import (
    SavesPipeline,
    ZeroLosses,
    check_loss_options,
    line_search_error,
    require_pipeline,
)

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
    from lightning.pytorch.strategies.xla import XLAStrategy
except ImportError as error:
    raise ImportError("gradhomog_adapters.lightning requires Lightning: pip install 'gradhomog[lightning]'.") from error

__all__ = ["HomogenizedLoss"]

Kind = Literal["loss", "weight", "norm", "cosine", "min_cosine"]
KINDS = get_args(Kind)

ENGINES = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
"""Strategies that shard parameters or run the backward pass themselves, also on one device."""


class HomogenizedLoss(SavesPipeline, Callback):  # type: ignore[misc, unused-ignore]
    """The sum of several losses with homogenized gradients, for `training_step`; also a callback of the trainer.

    value Σ_i L_i,  gradient θ.grad = f Σ_i (C J)_i  with J_i = ∂L_i/∂θ and f = 1/k for `accumulate_grad_batches=k`

    The module calls it with its losses and returns the result, from which Lightning continues as with any other loss.
    As a callback, it logs the step and stores the state of the homogenizers in checkpoints. So pass it to the trainer
    too, `Trainer(callbacks=[module.homogenized_loss])`, or return it in `LightningModule.configure_callbacks`.

    Args:
        pipe: the pipeline.
        parameters: the shared parameters, as in `gradhomog.loss`, such as the module's encoder. By default those that
            at least two losses depend on.
        log: the kinds of `StepReport.scalars()` that are logged after each backward pass: `"loss"` as `loss/A` for each
            task A, `"weight"` as `weight/A`, `"norm"` as `norm/A`, `"cosine"` as `cosine/A-B` for each pair of tasks,
            `"min_cosine"` as `cosine/min`. Weights are not logged if a homogenizer replaces rows. Norms and cosines
            are logged if a homogenizer reads them, and always with `inspect=True`.
        prefix: of all names of metrics, such as `"train/"`. It is part of the state's key in checkpoints, so different
            prefixes distinguish several objects of this class.
        options: other keyword arguments of `gradhomog.loss`, such as `per`, `heads`, `inspect`, and `reduction`, which
            is `"sum"` by default. `group` is `gradhomog.Ranks("batch")` by default on several devices.

    Attributes:
        pipe: the pipeline.
        report: the result of the last step, without the direction, which would occupy the memory of a gradient; None
            before the first.

    Conventions:
        1. The empty pipeline computes the gradient of the sum of the losses, up to rounding, so that learning rate,
           weight decay and clipping threshold can stay.
        2. With gradient accumulation each batch is one step of the homogenizers, and logged metrics are those of a
           batch. `gradhomog.accumulated` homogenizes the sum of several batches (manual optimization).
        3. Without gradients, as in validation and test, the result is the plain sum; no state changes and nothing is
           logged.
        4. On several devices with the strategy DDP, the rows are those of the batches of all ranks, which have equal
           weight, as in DDP: the empty pipeline trains as DDP does, others as one process with the whole batch. All
           ranks have the same gradients, states and metrics. Other strategies raise an error. DDP gives the missing
           loss of a rank (None) the gradient zero; here the mean is over the ranks that have a loss.

    Raises:
        OptionError: an option is unknown; in training: the object is not a callback of the trainer, or the module does
            not return its result; the optimizer is L-BFGS; the strategy distributes parameters or runs the backward
            pass, such as FSDP and DeepSpeed, also on one device; on several devices `parameters` is None; see also
            `gradhomog.loss`, `gradhomog.check_optimizer`.
        RankError: in `backward()`, another rank raised an error, or has other tasks, parameters or states.
        NonfiniteError: in `backward()`, a loss or its gradient is not finite; the message names the task.

    Warns:
        UserWarning: training continues from a checkpoint that has no state of this object.
        MomentumWarning: the optimizer averages directions, although a homogenizer such as `tracked` averages rows.

    Cost: as `gradhomog.backward`, and logging, which copies no gradient. On K ranks as `Ranks("batch")`, and DDP's own
    exchange, which a communication hook can omit (see the guide).

    >>> import gradhomog
    >>> from lightning.pytorch import LightningModule, Trainer
    >>> class Regression(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.encoder, self.heads = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
    ...         self.homogenized_loss = HomogenizedLoss(gradhomog.pipeline("upgrad"), parameters=self.encoder)
    ...     def training_step(self, batch, batch_idx):
    ...         errors = self.heads(self.encoder(batch)).square().mean(0)
    ...         return self.homogenized_loss({"height": errors[0], "weight": errors[1]})
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> Regression().homogenized_loss.pipe  # Trainer(callbacks=[module.homogenized_loss]).fit(module, batches)
    Pipeline('upgrad', nonfinite='raise')
    """

    def __init__(
        self, pipe: Pipeline, parameters: Any = None, *, log: Collection[Kind] = ("loss", "weight", "min_cosine"),
        prefix: str = "", **options: Any,
    ) -> None:  # fmt: skip
        require_pipeline(pipe)
        check_loss_options(options, "options must be")
        if isinstance(log, str) or not set(log) <= set(KINDS):
            raise OptionError(f"`log` must contain kinds of metrics, of {', '.join(KINDS)}; got {log!r}.")
        self.pipe = pipe
        self.prefix = prefix
        self._kinds = tuple(log)  # Lightning sets the attributes `log` and `log_dict` of callbacks
        # Iterators such as `encoder.parameters()` are exhausted after one step.
        parameters = list(parameters) if isinstance(parameters, Iterator) else parameters
        self.options = {"reduction": "sum", "parameters": parameters, **options}
        self._metrics: dict[str, float] = {}
        self._attached = False
        self._wrapped: Any = None  # the module in the wrapper of the strategy
        self._zero_losses = ZeroLosses()
        self._ranks: Ranks | None = None  # of the trainer

    def __call__(self, losses: Mapping[str, Tensor | None] | Sequence[Tensor | None] | Tensor, **batch: Any) -> Tensor:
        """Return the sum of the losses, whose `backward()` computes homogenized gradients.

        Args:
            losses: one scalar per task, by name; or a sequence, whose metrics are named `loss/0`, `loss/1`. None for a
                task without labels in this batch.
            batch: arguments of `gradhomog.loss` that differ between batches, such as `features`, `residuals`, or
                `group=gradhomog.Ranks("batch", examples=[...])` with the number of labels of each task.
        """
        if torch.is_grad_enabled() and not self._attached:
            raise OptionError(
                "a HomogenizedLoss must be one of the trainer's callbacks, to save its state and to log; it is not. "
                "Pass it as Trainer(callbacks=[...]), or return it in `configure_callbacks` of the module; Lightning "
                "then removes those of the trainer, so return all of them there. Without a trainer, use gradhomog.loss."
            )
        options = self.options | batch
        return self._zero_losses.total(losses, self._wrapped, self.pipe, self._ranks, report=self._receive, **options)

    @property
    def state_key(self) -> str:
        """The key of the state in Lightning's checkpoints, which contains the prefix."""
        return f"{type(self).__qualname__}{{'prefix': {self.prefix!r}}}"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Allow calls of this object; Lightning calls it for the callbacks of a trainer."""
        others = (callback for callback in trainer.callbacks if callback is not self)
        if any(isinstance(other, HomogenizedLoss) and other.state_key == self.state_key for other in others):
            raise OptionError(
                f"each HomogenizedLoss of a trainer must have another prefix; two have {self.prefix!r}, and a "
                "checkpoint would contain the state of only one of them. Pass prefix='...'."
            )
        if stage == "fit":
            self._ranks, self.report = ranks_of_trainer(trainer), None
        self._attached = True

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End what `setup` began."""
        self._attached, self._wrapped = False, None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check the optimizers, and that a resumed training has its state."""
        self._wrapped = trainer.strategy.model
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                advice = "Return the plain sum of the losses, or choose another optimizer."
                raise line_search_error("a module with HomogenizedLoss", "L-BFGS", advice)
            check_optimizer(optimizer, self.pipe)
        if self.pipe.steps == 0 and trainer.global_step > 0:
            warnings.warn(
                f"training continues at step {trainer.global_step} with new homogenizers: the checkpoint has no state "
                f"of {self.state_key}. Save and resume with the same HomogenizedLoss and prefix.",
                stacklevel=2,
            )

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics of a step that this backward pass has taken."""
        metrics, self._metrics = self._metrics, {}
        if metrics:
            pl_module.log_dict(metrics)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Raise if automatic optimization has not homogenized any loss of this training."""
        homogenized = [callback for callback in trainer.callbacks if isinstance(callback, HomogenizedLoss)]
        # In manual optimization a module may use the pipeline itself (`gradhomog.accumulated`).
        if pl_module.automatic_optimization and all(callback.report is None for callback in homogenized):
            raise OptionError(
                "a HomogenizedLoss is a callback of the trainer, but the gradient of this step is not homogenized: "
                f"`training_step` of {type(pl_module).__name__} must call it and return its result, return "
                "self.homogenized_loss(losses). For training without homogenizers remove it from the callbacks."
            )

    def _receive(self, result: StepReport) -> None:
        super()._receive(result)
        for name, value in result.scalars().items():
            kind = "min_cosine" if name == "cosine/min" else name.split("/")[0]
            if kind in self._kinds:
                self._metrics[f"{self.prefix}{name}"] = value


def ranks_of_trainer(trainer: Any) -> Ranks | None:
    """Return how a trainer distributes batches; None for one device.

    Raises:
        OptionError: its strategy does not only distribute batches.
    """
    strategy = trainer.strategy
    one = trainer.world_size == 1 and not isinstance(strategy, ENGINES)
    # DeepSpeed inherits from DDP.
    if not one and (not isinstance(strategy, DDPStrategy) or isinstance(strategy, (*ENGINES, XLAStrategy))):
        raise OptionError(
            "homogenized losses require a strategy that replicates the model and distributes batches, "
            f"strategy='ddp', or one device; got {type(strategy).__name__} (devices: {trainer.world_size})."
        )
    return None if one else Ranks("batch")
