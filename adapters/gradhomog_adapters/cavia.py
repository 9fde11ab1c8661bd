"""CAVIA: MAML whose inner loop adapts a few context parameters, which modulate the network."""

from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._inner_optimizer import Inner
from gradhomog_adapters._network import Parameters, linear_layers
from gradhomog_adapters._network_mode import Statistics
from gradhomog_adapters._option_types import Count, CountOrZero, Positive
from gradhomog_adapters.few_shot import LearnerOptions, Query, Support
from gradhomog_adapters.maml import MAML

CONTEXT = "task.context"


class CAVIA(MAML):
    """Learns shared parameters θ and adapts only a context φ to each task, in a few inner steps.

    φ_i⁰ = 0,  φ_i^{k+1} = φ_i^k − α ∇_φ L_S(φ_i^k, θ);  row_i = ∇_θ L_Q(φ_i^K(θ), θ)
    on features:  z ↦ (1 + γ) ∘ z + β with (γ, β) = W φ, W trainable;  on inputs:  x ↦ (x, φ)

    Args:
        encoder, head, homogenizers, loss: see `Learner`. With `on="inputs"` the context is appended to the encoder's
            inputs along dimension 1: `[n, input + context]` for vectors, `[n, channels + context, h, w]` for images,
            constant over the pixels; the first layer must have this number of inputs.
        context: the number of context parameters, ≥ 1: 4 or 5 for sinusoids, 100 for miniImageNet in the paper.
        on: `"features"`: the context scales and shifts the features by a layer of the learner, `learner.film.weight`
            `[2 · features, context]`; the first layer of the head must be a `torch.nn.Linear`. `"inputs"`: as in the
            paper for regression.
        inner, inner_lr, inner_steps, test_steps, first_order: see `MAML`; published: rate 1 and few steps.
        seed: seed of the initial weights W.
        engine, compile, autocast, norm, recompute: see `Execution`.

    The context is zero at the start of every task and is not trained. θ does not change at meta-test, so a task is
    stored in `context` numbers. Cost on features: the support set is encoded once, and inner steps run only the head;
    on inputs: as MAML.

    Source: Zintgraf et al. 2019, arXiv 1810.03642, equations 4 to 6 and algorithm 1.

    Deviations: (1) for images the paper scales and shifts the maps of the third convolution; here it is the features,
    so that any encoder can be used; (2) γ is added to 1 and there is no bias, so that φ = 0 gives the unmodified
    network; (3) meta-gradients are not clipped, as in the authors' code for miniImageNet, which limits each
    entry of the mean over the tasks to ±10.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = CAVIA(torch.nn.Linear(1 + 4, 8), torch.nn.Linear(8, 1), context=4, on="inputs")
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> sorted(learner.rows(TaskBatch(x, x.sin(), x, x.sin())).jacobian)
    ['encoder.bias', 'encoder.weight', 'head.bias', 'head.weight']
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        context: Count = 5,
        on: Literal["features", "inputs"] = "features",
        inner: Inner = "sgd",
        inner_lr: Positive = 1.0,
        inner_steps: CountOrZero = 1,
        test_steps: CountOrZero | None = None,
        first_order: bool = False,
        seed: int = 0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(
            encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps,
            test_steps=test_steps, first_order=first_order, **options,
        )  # fmt: skip
        self.context, self.on, self.adapted = context, on, [CONTEXT]
        self._adapts_encoder = on == "inputs"
        if on == "features":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self.register_module("film", nn.Linear(context, 2 * _features(head), bias=False))

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        start = next(iter(parameters.values())).new_zeros(self.context)
        return super().adapt({**parameters, CONTEXT: start}, support)

    def support_loss(self, parameters: Parameters, support: Support, k: int, features: Tensor | None) -> Tensor:
        if self.on == "inputs":
            return with_context(support, parameters).loss(parameters)
        features = support.features(parameters) if features is None else features
        return support.loss(parameters, self.modulate(parameters, features))

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        if self.on == "features":
            query = replace(query, features=self.modulate(parameters, query.features))
        return query.outputs(parameters)

    def modulate(self, parameters: Parameters, features: Tensor) -> Tensor:
        """(1 + γ) ∘ z + β"""
        film = self.extra_parameter(parameters, "film", "weight")
        gamma, beta = (film @ parameters[CONTEXT]).chunk(2)
        return (1 + gamma) * features + beta

    # -- context on inputs -------------------------------------------------------------------------------------------

    def support_statistics(self, point: Parameters, support: Support) -> Statistics:
        return super().support_statistics(point, with_context(support, point) if self.on == "inputs" else support)

    def query(self, point: Parameters, support: Support, x: Tensor, y: Tensor | None, statistics: Statistics) -> Query:
        x = append_context(x, point[CONTEXT]) if self.on == "inputs" else x
        return super().query(point, support, x, y, statistics)


def _features(head: nn.Module) -> int:
    message = "`head` must start with a torch.nn.Linear, whose inputs are modulated; or use on='inputs'."
    return linear_layers(head, message)[0].in_features


def with_context(support: Support, parameters: Parameters) -> Support:
    """Append the context in `parameters` to the inputs of the support set."""
    return replace(support, x=append_context(support.x, parameters[CONTEXT]))


def append_context(x: Tensor, context: Tensor) -> Tensor:
    """Append the context `[context]` to inputs `[n, channels, *size]`: `[n, channels + context, *size]`.

    >>> append_context(torch.ones(2, 1), torch.tensor([0.5, 0.25])).tolist()
    [[1.0, 0.5, 0.25], [1.0, 0.5, 0.25]]
    """
    size = x.shape[2:]
    planes = context.reshape(1, -1, *[1] * len(size)).expand(x.shape[0], -1, *size)
    return torch.cat([x, planes], dim=1)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=CAVIA,
        summary="MAML whose inner loop adapts a few context parameters, which modulate the network",
        reference="Zintgraf et al. 2019, arXiv 1810.03642",
        traits={"exact_rows"},
    )
