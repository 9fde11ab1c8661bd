"""MetaOptNet with ridge regression: classify queries by a linear model fitted to the support set in closed form."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, hookimpl
from gradhomog_adapters._metric import MetricLearner
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._option_types import Positive
from gradhomog_adapters.few_shot import LearnerOptions, Query, Support


class MetaOptNet(MetricLearner):
    """Learns features for which ridge regression of the support labels, in closed form, classifies the queries.

    X = f(S) `[support, features]`, Y one-hot `[support, ways]`
    W = argmin ‖XW − Y‖² + λ‖W‖² = Xᵀ(XXᵀ + λI)⁻¹Y,  outputs = s · f(x)ᵀW
    row_i = ∇ L_Q through the queries and through W, w.r.t. the encoder and s

    Args:
        encoder, head, homogenizers, loss: see `Learner`. Only the number of outputs of the head is used, the maximum
            number of classes of a task; the head is not trained and its rows are zero.
        regularization: λ > 0.
        scale: initial value of s, the parameter `learner.logits.scale` `[1]`; any finite number except 0.
        engine, compile, autocast, norm, recompute: see `Execution`. Support set and queries are separate
            batches for batch normalization.

    The system is solved in float64 and has a solution for every λ > 0: support examples can be repeated, fewer or more
    than features, or of one class only. Differentiable in every parameter of the encoder and in s; rows are exact. A
    class without a support example has output −∞. Regression tasks cause a DataError. A `transform` acts on the query
    features only, as in MAML; rotating W too would have no effect. Cost per task: one forward and backward pass, and
    O(support² · (features + support)).

    Source: Lee et al. 2019, arXiv 1904.03758, section 3.3; s is γ of its meta-learning loss.

    Deviations from the authors' code: (1) it passes the regression to a solver of quadratic programs, with a constraint
    that always holds and −2Y instead of −Y: its outputs are twice ours, which s compensates; (2) the closed form
    is used, so the solution and its derivative are exact; (3) cross entropy has no label smoothing, which is 0.1 in
    their best runs: set `loss`; (4) the paper's support vector machine is not implemented.

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
        regularization: Positive = 50.0,
        scale: float = 1.0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        if scale == 0:
            raise OptionError(f"`scale` must be a finite number other than 0; got {scale!r}.")
        self.regularization = regularization
        self.register_module("logits", nn.ParameterDict({"scale": torch.tensor([float(scale)])}))

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        task = self.class_tensors(parameters, support)
        with torch.autocast(support.x.device.type, enabled=False):
            x, y = task["task.features"].flatten(1).double(), task["task.members"].double()
            gram = x @ x.T + self.regularization * torch.eye(len(x), dtype=x.dtype, device=x.device)
            # No check of the result, which would synchronize with the device: the matrix is positive definite.
            dual = torch.linalg.solve_ex(gram, y)[0]
        return {**parameters, **task, "task.weights": x.T @ dual}

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        scale = self.extra_parameter(parameters, "logits", "scale")
        with torch.autocast(query.features.device.type, enabled=False):
            outputs: Tensor = (query.features.double() @ parameters["task.weights"]).to(query.features) * scale
        return self.mask_absent_classes(parameters, outputs)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MetaOptNet,
        summary="classifies queries by ridge regression on the support set, in closed form",
        reference="Lee et al. 2019, arXiv 1904.03758",
        traits={"exact_rows"},
    )
