"""Meta-transfer learning (MTL): learn scales and shifts of a frozen pre-trained encoder, and an initial head."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gradhomog import LearnerSpec, OptionError, hookimpl
from gradhomog_adapters._classifiers import ClassifierLearner
from gradhomog_adapters._inner_optimizer import Inner
from gradhomog_adapters._metric import at_least_float32
from gradhomog_adapters._network import Parameters, StepCounter, parameter_module
from gradhomog_adapters._option_types import Count, CountOrZero, Positive
from gradhomog_adapters.few_shot import LearnerOptions, Support
from gradhomog_adapters.maml import MAML


class MetaTransfer(ClassifierLearner, MAML):
    """Learns to scale and shift the neurons of a frozen encoder, and a head from which a few inner steps start.

    encoder Θ ⊙ Φ: weights W ⊙ Φ₁, one number of Φ₁ for each pair of output and input channel, and biases b + Φ₂
    θ_i⁰ = θ,  θ_i^{k+1} = θ_i^k − α ∇_θ L_S(Θ ⊙ Φ, θ_i^k)
    row_i = ∇_{Φ,θ} L_Q(Θ ⊙ Φ, θ_i^K(θ, Φ)), θ the head; initially Φ₁ = 1 and Φ₂ = 0

    Args:
        encoder, head, homogenizers, loss: see `Learner`. The encoder must contain convolutions or linear layers; a
            linear layer is a convolution with a 1×1 kernel. Its normalization layers are frozen too.
        pretrain_steps: ≥ 0, number of meta-steps that train the encoder like `Baseline` does: row_i = ∇ mean over
            support and query images of −log softmax(A f(x) + b)_class(x), w.r.t. the encoder, A and b. Afterwards the
            encoder is frozen. 0: the given encoder is pre-trained already.
        classes, input_shape: the classifier (A, b) during `pretrain_steps`, see `Baseline`. Without effect for 0 steps.
        inner, inner_lr: the inner optimizer of the head and its rate, see `MAML`.
        inner_steps, test_steps: K ≥ 0 in training and at meta-test.
        first_order: treat inner gradients as constants, as the authors' code in PyTorch does: Φ is then trained by the
            query features only.
        engine, compile, autocast, norm, recompute: see `Execution`.

    Φ is named `learner.scales.<weight>` and `learner.shifts.<bias>`, and (A, b) `learner.classifier`. Frozen parameters
    have no rows and no `.grad`, so an outer optimizer of `torch.optim` does not change them; one of TorchOpt with
    momentum does: make a new one after `pretrain_steps`. `parameters()` contains those of both phases. The head is not
    trained during `pretrain_steps`, and its rows are zero; at meta-test it is adapted in both phases. The number of
    completed steps is state, `learner.count`. Homogenizers with a state of rows start anew after `pretrain_steps`.
    Regression tasks cause a DataError during `pretrain_steps`. Rows are exact. Cost per task: that of `anil`, and in
    pre-training that of `baseline`; the number of trained parameters of a 3×3 convolution is a ninth of its weights.

    Source: Sun et al. 2019, arXiv 1812.02391, section 4.2, equations 3 to 6.

    Deviations from the paper: (1) pre-training uses batches of tasks, because homogenizers need rows, and the outer
    optimizer and rate of the other steps; (2) running statistics of batch normalization are not kept, see `norm`;
    (3) the hard-task meta-batch of section 4.3 is a choice of episodes. The authors published two programs, which
    differ. In TensorFlow: second order, normalization frozen, K = 20 (100 at meta-test), α = 0.001, Adam at 0.001 for
    Φ and θ. In PyTorch: first order, scales and shifts of normalization trained, K = 50, α = 0.01, Adam at 0.0001 for Φ
    and 0.001 for θ. Here rows and frozen layers are those of the first, which agrees with the equations; the default K
    and α are those of the second, with 100 steps at meta-test. For two outer rates pass an optimizer with two groups.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    >>> learner = MetaTransfer(encoder, torch.nn.Linear(16, 2), inner_steps=3)
    >>> x, y = torch.randn(3, 4, 1, 4, 4), torch.tensor([0, 1, 0, 1]).repeat(3, 1)
    >>> {name: tuple(rows.shape) for name, rows in learner.rows(TaskBatch(x, y, x, y)).jacobian.items()}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'head.weight': (3, 2, 16), 'head.bias': (3, 2),
     'learner.scales.encoder.0.weight': (3, 4, 1, 1, 1), 'learner.shifts.encoder.0.bias': (3, 4)}
    """

    pretrain_steps = 0  # the base class reads parameter names before it is set

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        pretrain_steps: CountOrZero = 0,
        classes: Count | None = None,
        input_shape: Sequence[int] | None = None,
        inner: Inner = "sgd",
        inner_lr: Positive = 0.01,
        inner_steps: CountOrZero = 50,
        test_steps: CountOrZero | None = 100,
        first_order: bool = False,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(
            encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps, adapt="head.*",
            test_steps=test_steps, first_order=first_order, **options,
        )  # fmt: skip
        self.classes, self.classifies = classes, False
        if pretrain_steps:
            self.register_classifier(input_shape)
            self.register_module("count", StepCounter())
        scales, shifts = _scales_and_shifts(self.network.modules(), self.network.parameters())
        self.register_module("scales", parameter_module(scales))
        self.register_module("shifts", parameter_module(shifts))
        self._scaled, self._shifted = frozenset(scales), frozenset(shifts)
        self._encoder = {n: p for n, p in super().named_parameters().items() if n.startswith("encoder.")}
        self.pretrain_steps = pretrain_steps

    # -- phases ------------------------------------------------------------------------------------------------------

    @property
    def pretraining(self) -> bool:
        """True during the first `pretrain_steps` meta-steps."""
        return self.pretrain_steps > 0 and self.completed_steps < self.pretrain_steps

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the current phase trains, and the head."""
        found = super().named_parameters()
        frozen = ("learner.scales.", "learner.shifts.") if self.pretraining else ("encoder.", "learner.classifier.")
        return {name: parameter for name, parameter in found.items() if not name.startswith(frozen)}

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are trained in either phase, for an outer optimizer."""
        found = super().named_parameters()
        return [p for name, p in found.items() if self.pretrain_steps or not name.startswith("encoder.")]

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        self.classifies = training and self.pretraining
        with super().mode(training):
            yield

    # -- Θ ⊙ Φ -------------------------------------------------------------------------------------------------------

    def transferred(self, parameters: Parameters) -> dict[str, Tensor]:
        """The parameters, with those of the scaled and shifted encoder."""
        found = {**parameters}
        for name, parameter in self._encoder.items():
            if not parameter.requires_grad:  # frozen by the user: not scaled either
                continue
            found[name] = parameter.detach()
            if name in self._scaled:
                found[name] = found[name] * self.extra_parameter(parameters, "scales", name)
            if name in self._shifted:
                found[name] = found[name] + self.extra_parameter(parameters, "shifts", name)
        return found

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        if self.classifies:
            return {**parameters, "task.features": at_least_float32(support.features(parameters)).flatten(1)}
        return super().adapt(self.transferred(parameters), support)


def _scales_and_shifts(
    modules: Mapping[str, nn.Module], parameters: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Initial scales by name of the weight, and shifts by name of the bias, of the layers of the encoder.

    Raises:
        OptionError: the encoder has no layer that could be scaled.
    """
    layers = [
        part for name, part in modules.items()
        if name.partition(".")[0] == "encoder" and isinstance(part, (_ConvNd, nn.Linear))
    ]  # fmt: skip
    if not layers:
        raise OptionError(
            "meta_transfer scales convolutions and linear layers of the encoder; `encoder` contains none of them."
        )
    names = {id(parameter): name for name, parameter in parameters.items()}  # tied weights have one name
    scales: dict[str, Tensor] = {}
    shifts: dict[str, Tensor] = {}
    for layer in layers:
        # Frozen weights, and weights that a parametrization computes, have no name.
        if name := names.get(id(layer._parameters.get("weight"))):
            scales[name] = torch.ones(*parameters[name].shape[:2], *[1] * (parameters[name].dim() - 2))
        if name := names.get(id(layer._parameters.get("bias"))):
            shifts[name] = torch.zeros(parameters[name].shape)
    return scales, shifts


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MetaTransfer,
        summary="learns scales and shifts of a frozen pre-trained encoder, and an initial head",
        reference="Sun et al. 2019, arXiv 1812.02391",
        traits={"exact_rows"},
    )
