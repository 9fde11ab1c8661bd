"""ProtoNet: classify queries by their squared distances to the class means."""

from torch import Tensor

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._metric import MetricLearner, class_means
from gradhomog_adapters._network import Parameters
from gradhomog_adapters.few_shot import Query, Support


class ProtoNet(MetricLearner):
    """Learns features such that a query is nearest to the mean support features of its class.

    c_w = mean of f(x) over the support examples of class w,  p(w | x) ∝ exp(−‖f(x) − c_w‖²)
    row_i = ∇ L_Q, the mean of −log p over the queries of task i, through the queries and through the means

    Args:
        encoder, head, homogenizers, loss: see `Learner`. Only the number of outputs of the head is used, the maximum
            number of classes of a task; the head is not trained and its rows are zero.
        engine, compile, autocast, norm, recompute: see `Execution`. Support set and queries are separate
            batches for batch normalization. Distances are computed in float32 or wider.

    Outputs are −‖f(x) − c_w‖². Feature maps are flattened to vectors of length C·h·w. Differentiable in every parameter
    of the encoder; rows are exact. A class without a support example has output −∞; a query of it makes the loss
    infinite, and the nonfinite policy applies to the task. Regression tasks cause a DataError.

    A `transform` acts on the query features only, as in MAML: ‖Rz − c‖. Rotating the means too would have no effect,
    ‖Rz − Rc‖ = ‖z − c‖. Cost per task: one forward and backward pass over support set and queries, and
    queries · ways · features numbers.

    Source: Snell et al. 2017, arXiv 1703.05175, equations 1 and 2, algorithm 1.

    Deviations: (1) distances are sums of squared differences. The code of MetaOptNet and others computes
    ‖z‖² − 2⟨z, c⟩ + ‖c‖², which loses digits by cancellation if classes are close, and divides by the number of
    features; (2) support set and queries are separate batches for batch normalization; the authors' code passes both
    through the network at once and uses running statistics at meta-test, which are not kept here; (3) their training
    has more ways (20 or 60) than their test, which is a choice of episodes.

    >>> import torch
    >>> from gradhomog import Task
    >>> learner = ProtoNet(torch.nn.Identity(), torch.nn.Linear(1, 2))
    >>> x, y = torch.tensor([[0.0], [2.0], [10.0]]), torch.tensor([0, 0, 1])
    >>> learner.predict(x, y, torch.tensor([[4.0]]))
    tensor([[ -9., -36.]])
    """

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        task = self.class_tensors(parameters, support)
        return {**parameters, **task, "task.means": class_means(task["task.features"].flatten(1), task["task.members"])}

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        distances = (query.features[:, None] - parameters["task.means"]).square().sum(-1)
        return self.mask_absent_classes(parameters, -distances)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=ProtoNet,
        summary="classifies queries by their squared distances to the class means",
        reference="Snell et al. 2017, arXiv 1703.05175",
        traits={"exact_rows"},
    )
