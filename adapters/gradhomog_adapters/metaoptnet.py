"""MetaOptNet with ridge regression: queries are classified by a linear model that fits the support set exactly."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, hookimpl
from gradhomog_adapters._metric import Metric
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters.execution import Execution, ExecutionOptions
from gradhomog_adapters.few_shot import Query, Support


class MetaOptNet(Metric):
    """Learns features on which ridge regression of the classes, in closed form, does well on the queries.

    X = f(S) `[support, features]`, Y one-hot `[support, ways]`
    W = argmin ‖XW − Y‖² + λ‖W‖² = Xᵀ(XXᵀ + λI)⁻¹Y,  outputs = s · f(x)ᵀW
    row_i = ∇ L_Q through the queries and through W, by the encoder and by s

    Args:
        encoder, head, homogenizers, loss: see `Learner`. Of the head only the number of outputs counts, the most
            classes that a task can have; it is not trained, its rows are zero.
        regularization: λ > 0.
        scale: what s, the parameter `learner.logits.scale` `[1]`, starts at; any finite number but 0.
        execution, engine, compile, autocast, norm, recompute: see `Execution`. Support set and queries are separate
            batches of batch normalization.

    The system is solved in float64, and never fails for λ > 0: supports may be repeated, fewer or more than features,
    of one class only. Differentiable in every parameter of the encoder and in s; rows are exact. A class without a
    support example has output −∞. Regression is refused (DataError). A `transform` acts on the features of the queries
    only, as in MAML; with W rotated alike it would do nothing. Cost per task: one forward and backward pass, and
    O(support² · (features + support)).

    Source: Lee et al. 2019, arXiv 1904.03758, section 3.3; s is γ of its meta-learning loss.

    Deviations from the authors' code: (1) it hands the regression to a solver of quadratic programs, by a side
    condition that holds always, and −2Y in place of −Y: its outputs are twice ours, which s takes up; (2) the closed
    form, so the solution is exact, and so is its derivative; (3) cross entropy without label smoothing, which is 0.1
    in their best runs: give `loss`; (4) the support vector machine of the paper's other half is not here.

    >>> import torch
    >>> learner = MetaOptNet(torch.nn.Identity(), torch.nn.Linear(1, 2), regularization=4.0)
    >>> learner.predict(torch.tensor([[2.0], [-2.0]]), torch.tensor([0, 1]), torch.tensor([[3.0]]))
    tensor([[ 0.5000, -0.5000]])
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        regularization: float = 50.0,
        scale: float = 1.0,
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss=loss, execution=execution, **keywords)
        if not 0 < regularization < math.inf:
            raise OptionError(f"`regularization` must be positive; got {regularization!r}.")
        if not math.isfinite(scale) or scale == 0:
            raise OptionError(f"`scale` must be a finite number other than 0; got {scale!r}.")
        self.regularization = regularization
        self.learn("logits", nn.ParameterDict({"scale": torch.tensor([float(scale)])}))

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        task = self.described_classes(parameters, support)
        with torch.autocast(support.x.device.type, enabled=False):
            x, y = task["task.features"].flatten(1).double(), task["task.members"].double()
            gram = x @ x.T + self.regularization * torch.eye(len(x), dtype=x.dtype, device=x.device)
            # Without a check of the result, which would wait for the device: the matrix is positive definite.
            dual = torch.linalg.solve_ex(gram, y)[0]
        return {**parameters, **task, "task.weights": x.T @ dual}

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        scale = parameters.get("learner.logits.scale", self.own["logits"].get_parameter("scale"))
        with torch.autocast(query.features.device.type, enabled=False):
            outputs: Tensor = (query.features.double() @ parameters["task.weights"]).to(query.features) * scale
        return self.without_absent(parameters, outputs)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MetaOptNet,
        summary="classifies queries by ridge regression on the support set, in closed form",
        reference="Lee et al. 2019, arXiv 1904.03758",
        traits={"exact_rows"},
    )
