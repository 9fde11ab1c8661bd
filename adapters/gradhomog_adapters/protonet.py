"""ProtoNet: queries are classified by their distances to the classes' means."""

from __future__ import annotations

from torch import Tensor

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._metric import Metric, class_means
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters.few_shot import Query, Support


class ProtoNet(Metric):
    """Learns features in which a query is nearest to the mean of its own class's support features.

    c_w = mean of f(x) over the support examples of class w,  p(w | x) ∝ exp(−‖f(x) − c_w‖²)
    row_i = ∇ L_Q, the mean of −log p over the queries of task i, through the queries and through the means

    Args:
        encoder, head, homogenizers, loss: see `Learner`. Of the head only the number of outputs counts, the most
            classes that a task can have; it is not trained, its rows are zero.
        execution, engine, compile, autocast, norm, recompute: see `Execution`. Support set and queries are separate
            batches of batch normalization.
            Distances are computed in float32 at least.

    Outputs are −‖f(x) − c_w‖². Features that are maps are vectors of C·h·w numbers. Differentiable in every parameter
    of the encoder; rows are exact. A class without a support example has output −∞; a query of it makes the loss
    infinite, to which the policy for tasks that are not finite applies. Regression is refused (DataError).

    A `transform` acts on the features of the queries only, as in MAML: ‖Rz − c‖. Rotating the means too would change
    nothing, ‖Rz − Rc‖ = ‖z − c‖. Cost per task: one forward and backward pass over support set and queries, and
    queries · ways · features numbers.

    Source: Snell et al. 2017, arXiv 1703.05175, equations 1 and 2, algorithm 1.

    Deviations: (1) distances are sums of squared differences, not ‖z‖² − 2⟨z, c⟩ + ‖c‖², as in the code of MetaOptNet
    and others, whose cancellation costs digits where classes are close; nor are they divided by the number of
    features, as there; (2) batch normalization sees support set and queries one after the other, where the authors'
    code passes both through the network at once, and at meta-test uses running statistics: these are not kept here;
    (3) their training has more ways (20 or 60) than their test: that is a choice of episodes.

    >>> import torch
    >>> from gradhomog import Task
    >>> learner = ProtoNet(torch.nn.Identity(), torch.nn.Linear(1, 2))
    >>> x, y = torch.tensor([[0.0], [2.0], [10.0]]), torch.tensor([0, 0, 1])
    >>> learner.predict(x, y, torch.tensor([[4.0]]))
    tensor([[ -9., -36.]])
    """

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        task = self.described_classes(parameters, support)
        return {**parameters, **task, "task.means": class_means(task["task.features"].flatten(1), task["task.members"])}

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        distances = (query.features[:, None] - parameters["task.means"]).square().sum(-1)
        return self.without_absent(parameters, -distances)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=ProtoNet,
        summary="classifies queries by their squared distances to the means of the classes",
        reference="Snell et al. 2017, arXiv 1703.05175",
        traits={"exact_rows"},
    )
