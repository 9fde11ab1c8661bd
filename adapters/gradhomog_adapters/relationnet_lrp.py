"""RelationNet with explanation-guided training: features are weighted by their relevance for the relations."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, linear

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._option_types import NonNegative
from gradhomog_adapters.few_shot import Query
from gradhomog_adapters.relationnet import RelationNet, RelationNetOptions

EPSILON = 0.01  # of the linear rule and the class scores, in the code of Sun et al. 2020

Layer = tuple[nn.Module, dict[str, Tensor]]
"""A module and its parameters by name."""


class RelationNetLRP(RelationNet):
    """RelationNet that also learns from pairs weighted by layer-wise relevance propagation (LRP) through g.

    s_w = g(f_w),  f_w = [c_w; f(x)],  p = softmax(s),  v_w = log(β (p_w + ε) / (1 − p_w + ε)),  β = ways − 1
    R_w = relevance of f_w for v_w,  a_w = 1 + R_w / max over channels |R_w|
    row_i = ∇ (L(g(f)) + λ L(g(a ⊙ f))), where a is a constant

    Args:
        encoder, head, homogenizers: see `Learner`.
        loss, maps, input_shape, hidden, objective: see `RelationNet`.
        guidance: λ ≥ 0; default: 0.5 for tasks of one support example per class, 1 for others, as in the authors' code.
            0: RelationNet.
        engine, compile, autocast, norm, recompute: see `Execution`. With `norm="support"`, the statistics of
            the unweighted support pairs normalize the weighted pairs.

    v_w is positive if p_w is larger than chance. Linear layers of g have the ε-rule with ε = 0.01, convolutions the
    α1β0-rule; batch normalization and ReLU pass relevance unchanged, and max-pooling passes it to the maximum. Weights
    are in [0, 2], one for each channel and position of each pair. Reported losses contain both terms; outputs are those
    of the unweighted pairs. Meta-test is that of RelationNet. Rows are not derivatives of the reported losses, because
    a is a constant. Cost: that of RelationNet with about three passes of g instead of one, and the backward passes of
    two.

    Source: Sun et al. 2020, arXiv 2007.08790, and the authors' code for RelationNet.

    Deviations: (1) those of `RelationNet`. (2) β is the number of classes in the support set minus one, and 1 for a
    single class; the code has the constant 4. (3) The code supports one and five shots only. (4) The code replaces
    inputs 0 of linear layers by −10⁻⁶; here their relevance is 0.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = RelationNetLRP(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
    >>> x, y = torch.randn(3, 4, 4), torch.arange(2).repeat(3, 2)
    >>> report = learner.step(TaskBatch(x, y, x, y), torch.optim.Adam(learner.parameters(), lr=1e-3))
    >>> tuple(report.losses.shape)
    (3,)
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        guidance: NonNegative | None = None,
        **options: Unpack[RelationNetOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        self.guidance = guidance

    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
        if self.guidance == 0:
            return super().query_loss(parameters, query)
        assert query.y is not None
        pairs = self.pairs(parameters, query.features)
        scores = self.scores(parameters, pairs)
        weighted = self.scores(parameters, pairs * self.weights(parameters, pairs, scores))
        outputs = self.relations(parameters, scores)
        guided = self.loss(self.relations(parameters, weighted), query.y)
        return self.loss(outputs, query.y) + self._strength(parameters) * guided, outputs

    def weights(self, parameters: Parameters, pairs: Tensor, scores: Tensor) -> Tensor:
        """Return the weights of the pairs, constants in [0, 2] of the shape of `pairs`."""
        present = parameters["task.members"].sum(0) > 0
        layers = []
        for index, layer in self.extra_modules["relation"].named_children():
            prefix = f"learner.relation.{index}."
            layers.append((layer, {name: parameters.get(prefix + name, p) for name, p in layer.named_parameters()}))
        with self.relation_normalization(parameters):
            relevance = relevance_of_inputs(layers, pairs.flatten(0, 1), class_scores(scores, present).reshape(-1, 1))
        largest = relevance.abs().amax(1, keepdim=True)
        return (1 + relevance / torch.where(largest == 0, 1, largest)).reshape(pairs.shape)

    def _strength(self, parameters: Parameters) -> Tensor | float:
        if self.guidance is not None:
            return self.guidance
        counts = parameters["task.members"].sum(0)
        return torch.where(counts.max() > 1, 1.0, 0.5)


def class_scores(scores: Tensor, present: Tensor) -> Tensor:
    """Return log(β (p + ε) / (1 − p + ε)), `[n, ways]`, for p = softmax over the classes that are present.

    >>> class_scores(torch.zeros(1, 3), torch.ones(3, dtype=torch.bool))[0, 0].round(decimals=4)  # p = 1/3, β = 2
    tensor(0.0147)
    """
    p = torch.where(present, scores.detach(), -torch.inf).softmax(1)
    beta = (present.sum() - 1).clamp_min(1)
    return (beta * (p + EPSILON) / (1 - p + EPSILON)).log()


def relevance_of_inputs(layers: Iterable[Layer], inputs: Tensor, relevance: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return the relevance of each input for the relevance of the outputs, of the shape of `inputs`, as a constant.

    Rules, from the outputs to the inputs, with R the relevance of the outputs of a layer:

        linear, ε-rule:              R_i ← x_i Σ_j w_ji R_j / (z_j + ε sign z_j),  z = W x,  sign 0 = 1
        convolution, α1β0-rule:      R_i ← Σ_j [w_ji x_i]₊ R_j / z_j,  z_j = Σ_i [w_ji x_i]₊,  [a]₊ = max(a, 0)
        max-pooling:                 all relevance to the maximum
        all others:                  unchanged

    Biases receive no relevance. A convolution preserves Σ R, except for outputs without a positive contribution, whose
    relevance is lost. With ε = 0, a linear layer preserves Σ R.

    Args:
        layers: linear layers, 2-d convolutions and max-poolings, flattening, and elementwise layers.
        inputs: `[n, *input]` of the first layer.
        relevance: `[n, *output]` of the last layer.
        epsilon: ε ≥ 0.

    Source: Bach et al. 2015, doi 10.1371/journal.pone.0130140, equations 58 and 60.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> inputs, relevance = torch.tensor([[1.0, 3.0]]), torch.tensor([[8.0]])
    >>> relevance_of_inputs([(layer, {"weight": torch.tensor([[1.0, 1.0]])})], inputs, relevance, epsilon=0.0)
    tensor([[2., 6.]])
    """
    with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
        x, passes = inputs.detach(), []
        for module, parameters in layers:
            constants = {name: tensor.detach() for name, tensor in parameters.items()}
            passes.append((module, constants, x))
            x = functional_call(module, constants, (x,))
        relevance = relevance.detach()
        for module, constants, x in reversed(passes):
            if isinstance(module, nn.Linear):
                z = linear(x, constants["weight"])
                share = relevance / torch.where(z < 0, z - epsilon, z + epsilon)
                relevance = x * (share @ constants["weight"])
            elif isinstance(module, nn.Conv2d):
                relevance = _positive_contributions(module, constants["weight"], x, relevance)
            elif isinstance(module, nn.MaxPool2d):
                relevance = _pull_back(module, x, relevance)
            else:
                relevance = relevance.reshape(x.shape)
    return relevance


def _positive_contributions(module: nn.Conv2d, weight: Tensor, x: Tensor, relevance: Tensor) -> Tensor:
    """The α1β0-rule: contributions w x > 0 are those of positive w and x, and those of negative w and x."""

    def convolve(weight: Tensor, x: Tensor) -> Tensor:
        return conv2d(x, weight, None, module.stride, module.padding, module.dilation, module.groups)

    pairs = [(weight.clamp(min=0), x.clamp(min=0)), (weight.clamp(max=0), x.clamp(max=0))]
    z = convolve(*pairs[0]) + convolve(*pairs[1])
    share = torch.where(z > 0, relevance / torch.where(z > 0, z, 1), 0)
    first, second = (part * _pull_back(partial(convolve, signed), part, share) for signed, part in pairs)
    return first + second


def _pull_back(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient w.r.t. x, by `torch.func`, which works within `vmap` too."""
    found: Tensor = torch.func.vjp(function, x)[1](gradient)[0]
    return found


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=RelationNetLRP,
        summary="RelationNet that also learns from features weighted by their relevance",
        reference="Sun et al. 2020, arXiv 2007.08790",
    )
