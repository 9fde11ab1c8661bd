"""`HomogenizedMTLTrainer`: the multi-task trainer of torch-rechub, with homogenized gradients."""

import inspect
from typing import Any

import numpy as np
import tqdm
from torch import Tensor

import gradhomog
from gradhomog import OptionError, Pipeline, StepReport, check_optimizer
from gradhomog_adapters._frameworks import ReceivesReports, RunningMeans, check_loss_options, check_pipeline

try:
    from torch_rechub.models.multi_task import ESMM
    from torch_rechub.trainers import MTLTrainer
except ImportError as error:
    raise ImportError(
        "gradhomog_adapters.torch_rechub requires torch-rechub: pip install 'gradhomog[torch-rechub]'."
    ) from error

__all__ = ["HomogenizedMTLTrainer"]

METHODS = ("uwl", "metabalance", "gradnorm")
"""The methods of torch-rechub; it ignores other names."""


class HomogenizedMTLTrainer(ReceivesReports, MTLTrainer):  # type: ignore[misc, unused-ignore]
    """An `MTLTrainer` that takes a pipeline where it takes `"uwl"`, `"metabalance"` and `"gradnorm"`.

    θ.grad = 1/N Σ_i (C J)_i + ∂R/∂θ  and  φ_i.grad = 1/N ∂L_i/∂φ_i + ∂R/∂φ_i  with J_i = ∂L_i/∂θ for the shared
    parameters θ, the towers φ_i and the regularization R. For ESMM, whose tasks are click and click with conversion,
    without the factor 1/N.

    Args:
        adaptive_params: `{"method": gradhomog.pipeline("upgrad")}`; the methods of torch-rechub work as before. Other
            entries are keyword arguments of `gradhomog.loss`, such as `"parameters"`, the shared ones, by default those
            that two or more losses depend on, or those of the only loss; and `"per"`, `"heads"`, `"inspect"`.
        others: as in `MTLTrainer`.

    Attributes:
        pipe: the pipeline, None for a method of torch-rechub.
        report: the result of the last step, without the direction, which would occupy the memory of a gradient; None
            before the first.

    Conventions:
        1. The empty pipeline has the gradients of `adaptive_params=None`, up to rounding, so that learning rate and
           weight decay can stay. Adam enlarges this rounding where gradients are small; SGD does not. The gradient of
           the regularization is added to the homogenized one.
        2. Loggers (`model_logger`) receive the epoch's means of `StepReport.scalars()`: `weight/task_0`, …,
           `cosine/min`, of those that the homogenizers compute; no weights if a homogenizer replaces rows.
        3. `fit` saves the model, not the state of the homogenizers: save `trainer.pipe.state_dict()`. Early stopping
           restores the best model; the homogenizers keep their last state.

    Raises:
        OptionError: `method` is neither a pipeline nor a method of torch-rechub; a homogenizer requires features or
            residuals; an entry of `adaptive_params` is unknown; `gpus` has several entries; in training, as in
            `gradhomog.loss`.
        NonfiniteError: in training, a loss or its gradient is not finite; the message names the task.

    Warns:
        MomentumWarning: see `gradhomog.check_optimizer`, which also raises.

    Cost: as `gradhomog.backward` for each batch.

    >>> import torch
    >>> from torch_rechub.basic.features import DenseFeature
    >>> from torch_rechub.models.multi_task import SharedBottom
    >>> tasks, tower = ["classification", "classification"], {"dims": [4]}
    >>> model = SharedBottom([DenseFeature("age")], tasks, {"dims": [8]}, [tower, tower])
    >>> trainer = HomogenizedMTLTrainer(model, tasks, adaptive_params={"method": gradhomog.pipeline("upgrad")})
    >>> trainer.pipe  # trainer.fit(training_batches, validation_batches)
    Pipeline('upgrad', nonfinite='raise')
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(MTLTrainer).bind(*args, **kwargs).arguments
        options = dict(given.get("adaptive_params") or {})
        method = options.pop("method", None)
        self.pipe: Pipeline | None = None
        if isinstance(method, Pipeline):
            check_pipeline(method, "torch-rechub")
            check_loss_options(options, "`adaptive_params` must contain 'method' and", {"reduction"})
            if len(given.get("gpus") or ()) > 1:
                raise OptionError(
                    "with a pipeline `gpus` must have at most one entry, because DataParallel is not supported; got "
                    f"{given['gpus']}. Use `device`."
                )
            self.pipe, self._options = method, options
            given = {**given, "adaptive_params": None}
        elif method is not None and method not in METHODS:
            raise OptionError(
                f"`method` must be a pipeline, such as gradhomog.pipeline('upgrad'), or one of {', '.join(METHODS)}; "
                f"got {method!r}."
            )
        super().__init__(**given)
        self._epochs = 0
        if self.pipe is not None:
            check_optimizer(self.optimizer, self.pipe)

    def train_one_epoch(self, data_loader: Any) -> list[float]:
        """Train on the batches of one epoch; return the mean loss of each task."""
        if self.pipe is None:
            return super().train_one_epoch(data_loader)  # type: ignore[no-any-return, unused-ignore]
        # The loop of MTLTrainer, because it has no method for one batch that could be overridden.
        self.model.train()
        totals, batches, means = np.zeros(self.n_task), 0, RunningMeans()
        for x, y in tqdm.tqdm(data_loader, desc="train", smoothing=0, mininterval=1.0):
            outputs, y = self.model({name: value.to(self.device) for name, value in x.items()}), y.to(self.device)
            losses = [loss(outputs[:, task], y[:, task].float()) for task, loss in enumerate(self.loss_fns)]
            loss = self._homogenized(losses, self.pipe, means) + self.reg_loss_fn(self.model)
            self.model.zero_grad()
            loss.backward()
            self.optimizer.step()
            totals += [loss.item() for loss in losses]
            batches += 1
        found = [float(total) / batches for total in totals]
        print("train loss: ", {f"task_{task}:": loss for task, loss in enumerate(found)})
        metrics = means.pop()
        for logger in self._iter_loggers():
            logger.log_metrics(metrics, step=self._epochs)
        self._epochs += 1
        return found

    def _homogenized(self, losses: list[Tensor], pipe: Pipeline, means: RunningMeans) -> Tensor:
        """Return the mean of the losses, or for ESMM the sum of the last two, with homogenized gradients."""
        whole_space = isinstance(self.model, ESMM)  # its first output, the conversion, has no loss
        named = {f"task_{task}": loss for task, loss in enumerate(losses) if task or not whole_space}

        def receive(result: StepReport) -> None:
            self._receive(result)
            for name, value in result.scalars().items():
                means.add(name, value)

        # Of one loss, such as that of ESMM with two labels, no parameters are shared; its gradient is the only row.
        options = ({"parameters": self.model} if len(named) == 1 else {}) | self._options
        total = gradhomog.loss(named, pipe, reduction="sum", report=receive, **options)
        # Divided here: `reduction="mean"` would not divide the gradients of the towers.
        return total if whole_space else total / len(named)
