"""`HomogenizedWeighting`: homogenize the gradients of the conditions of a PINA solver."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import gradhomog
from gradhomog import OptionError, Pipeline, check_optimizer
from gradhomog_adapters._frameworks import SavesPipeline, check_pipeline, line_search_error

try:
    from lightning.pytorch import Callback
    from pina.problem import InverseProblem
    from pina.solver import CompetitivePhysicsInformedSolver, SelfAdaptivePhysicsInformedSolver
    from pina.weighting import BaseWeighting

    from gradhomog_adapters.lightning import ranks_of_trainer
except ImportError as error:
    raise ImportError("gradhomog_adapters.pina requires PINA: pip install 'gradhomog[pina]'.") from error

__all__ = ["HomogenizedWeighting"]


class HomogenizedWeighting(SavesPipeline, BaseWeighting, Callback):  # type: ignore[misc]
    """A weighting for PINA's solvers, whose loss has homogenized gradients: a scalar that Lightning differentiates.

    value Σ_i w_i L_i,  gradient θ.grad = Σ_i (C J)_i  with J_i = w_i ∂L_i/∂θ, condition i

    PINA's weightings return one scalar from the losses of the conditions, and Lightning calls its `backward()`. This
    one takes the step of the homogenizers in that call, so all of them work, also those that act on gradients, in
    automatic and in manual optimization, with gradient accumulation, clipping and half precision.

    Args:
        pipe: the pipeline. Homogenizers that read features or residuals are not supported.
        weights: fixed factors w > 0 of losses by condition, 1 for those that are not listed. Homogenizers receive the
            weighted losses.

    Attributes:
        report: the result of the last step, None before the first: weights and, if a homogenizer reads inner products,
            norms and cosines.

    Pass it as `weighting` to a solver, and to the trainer as one of its `callbacks`: its state is then part of
    Lightning's checkpoints. Without the second, training is the same, but a resumed run starts with new homogenizers,
    and warns.

    Conventions:
        1. PINA trains with the sum of the losses, so the mean of the homogenized rows is multiplied by their number:
           the empty pipeline computes PINA's gradient, up to rounding, with the same rates and weight decay.
        2. θ are the trainable parameters of the solver and, in an inverse problem, the unknown parameters, which are
           named `unknown NAME`.
        3. The names of the conditions are the domains of the rows. A condition that is not in a batch is
           absent: it takes no part in the step and keeps its state.
        4. Validation and test return the sum; no state changes.
        5. L-BFGS requires the gradient of one fixed loss. After a switch to it (`SwitchOptimizer`), the weighting is
           the plain sum; a training that begins with it raises an error, or, if an earlier training has homogenized
           with the same pipeline, warns.

    Raises:
        OptionError: the pipeline reads features or residuals; a weight is not a positive number; during training: the
            optimizer is L-BFGS and nothing was homogenized before; the strategy shards parameters or runs the backward
            pass, such as DeepSpeed; the solver is adversarial (self-adaptive, competitive), or has another weighting; a
            name in `weights` is not a condition; see also `gradhomog.loss`, `gradhomog.check_optimizer`.
        NonfiniteError: during training, a loss or its gradient is not finite; the message names the condition.

    Warns:
        UserWarning: a run was resumed without this callback.
        MomentumWarning: the optimizer averages directions, although a homogenizer such as `tracked` averages rows.

    Cost: see `gradhomog.backward`; one backward pass per condition, or one in total if the pipeline reads losses only.

    >>> from pina.model import FeedForward
    >>> from pina.problem.zoo import Poisson2DSquareProblem
    >>> from pina.solver import PhysicsInformedSingleModelSolver
    >>> weighting = HomogenizedWeighting(gradhomog.pipeline("upgrad"))
    >>> solver = PhysicsInformedSingleModelSolver(Poisson2DSquareProblem(), FeedForward(2, 1), weighting=weighting)
    >>> solver.weighting.pipe  # pina.Trainer(solver, max_epochs=1000, callbacks=[weighting]).train()
    Pipeline('upgrad', nonfinite='raise')
    """

    def __init__(self, pipe: Pipeline, weights: Mapping[str, float] | None = None) -> None:
        check_pipeline(pipe, "PINA")
        if weights is not None and not (isinstance(weights, Mapping) and all(map(_is_positive, weights.values()))):
            raise OptionError(f"`weights` must be a dict of positive factors by condition; got {weights!r}.")
        super().__init__(update_every_n_epochs=1, aggregator=self._sum)
        self.pipe = pipe
        self.weights = dict(weights or {})
        self._losses: dict[str, Tensor] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raise unless this callback is also the weighting of the solver, because it would do nothing."""
        if pl_module.weighting is not self:
            raise OptionError(
                "a HomogenizedWeighting in `callbacks` must be the weighting of the solver too; the solver has "
                f"{type(pl_module.weighting).__name__}. Pass weighting=... to the solver."
            )

    def update_weights(self, losses: Mapping[str, Tensor]) -> dict[str, float]:
        """Store the losses of the batch for their sum, and return the fixed weights.

        PINA calls it before the aggregator, which receives the losses in one tensor only: each backward pass would
        traverse the graphs of all of them.
        """
        if isinstance(self.solver, (CompetitivePhysicsInformedSolver, SelfAdaptivePhysicsInformedSolver)):
            raise OptionError(
                f"HomogenizedWeighting does not support adversarial training; got {type(self.solver).__name__}, in "
                "which one player maximizes the losses. Choose another solver."
            )
        unknown = self.weights.keys() - self.solver.problem.conditions.keys()
        if unknown:
            raise OptionError(
                f"`weights` must contain names of conditions, {', '.join(self.solver.problem.conditions)}; got "
                f"{', '.join(sorted(unknown))}."
            )
        factors = {name: self.weights.get(name, 1) for name in losses}
        self._losses = {name: factors[name] * loss.as_subclass(Tensor) for name, loss in losses.items()}
        return factors

    def last_saved_weights(self) -> dict[str, float]:
        """Return the factors of the conditions' gradients in the last step, by name; empty if rows were replaced."""
        return {name: weight * self.weights.get(name, 1) for name, weight in self._weights().items()}

    def _sum(self, weighted_losses: Tensor) -> Tensor:
        """Return the sum of the losses, during training with homogenized gradients."""
        losses, self._losses = self._losses, {}
        trainer = self.solver.trainer
        if not trainer.training or not self._first_order(trainer):
            return weighted_losses.sum()
        self._check_at_the_start(trainer)
        return gradhomog.loss(
            {name: losses.get(name) for name in self.solver.problem.conditions},
            self.pipe,
            parameters=self._parameters(),
            reduction="sum",
            report=self._receive,
        )

    def _first_order(self, trainer: Any) -> bool:
        if not any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in trainer.optimizers):
            return True
        if self.pipe.steps == 0:
            advice = "Train with Adam first and switch (pina.callback.SwitchOptimizer), or remove the weighting."
            raise line_search_error("a solver with HomogenizedWeighting", "L-BFGS", advice)
        if trainer.global_step == 0:
            warnings.warn("this training with L-BFGS minimizes the plain sum of the losses.", stacklevel=2)
        return False

    def _check_at_the_start(self, trainer: Any) -> None:
        if self.pipe.steps == 0 and trainer.current_epoch > 0:
            warnings.warn(
                f"training continues at epoch {trainer.current_epoch} with new homogenizers: no state was loaded. Pass "
                "the weighting to the trainer too, callbacks=[weighting], before saving and when resuming.",
                stacklevel=2,
            )
        ranks_of_trainer(trainer)  # raises for a strategy such as DeepSpeed
        if self.pipe.steps == 0:
            for optimizer in trainer.optimizers:
                check_optimizer(optimizer, self.pipe)

    def _parameters(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = dict(self.solver.named_parameters())
        if isinstance(self.solver.problem, InverseProblem):
            found.update({f"unknown {name}": p for name, p in self.solver.problem.unknown_parameters.items()})
        return found


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
