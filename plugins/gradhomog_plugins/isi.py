"""Invariant self-information of RotoGBML: dropout of activations over patches that resemble their neighbours."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval, MinLen
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog import Homogenizer, HomogenizerSpec, Step, TaskKey, hookimpl
from gradhomog_plugins._isi import drop
from gradhomog_plugins._isi.layers import Call, pool_log_s, register_hooks, select_layers
from gradhomog_plugins._isi.self_information import log_kernel_sum, neighbourhood


class _WithoutGraph(torch.autograd.Function):
    """`compute(inputs)` for independent samples along the first dimension; under vmap the tasks are more samples."""

    @staticmethod
    def forward(inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        return compute(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def jvp(ctx: Any, *_: Tensor) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
        together = inputs.movedim(in_dims[0], 0)
        result: Tensor = _WithoutGraph.apply(together.flatten(0, 1), compute)  # type: ignore[no-untyped-call]
        return result.reshape(*together.shape[:2], *result.shape[1:]), 0


Part = Literal["support", "query"]


class ISI(Homogenizer):
    """Dropout that prefers patches with low self-information: texture and background rather than outlines.

        S(p) = Σ_{p' ∈ N(p)} exp(−‖p − p'‖² / (2 h² m)),  m = mean ‖p − p'‖² of the sample
        Î(p) = −log S(p),  s = softmax over positions of log S / T  (∝ e^{−Î/T})
        P = 1 − (1 − rate)^(positions · s)
        output ← output · mask / (1 − P̄), with mask 0 with probability P, independently for each channel

    Args:
        layers: a number: the first convolutions, or all if there are fewer; or a name in the encoder, a glob pattern,
            or several of them: convolutions of 1 to 3 dimensions, and max-poolings of the output of a convolution (with
            the smallest S of each window). The published code applies the mask after the block and its pooling.
        rate: in [0, 1), P where all patches are equally common. The smaller T, the further P̄ is below `rate`.
        temperature: T ≥ 0. 0: only positions of the largest S, in equal shares; there P = 1 − (1 − rate)^positions,
            which is close to 1 on large maps.
        radius: C ≥ 1, the largest shift in each dimension; there are (2C + 1)^dims shifts. The paper calls C a
            "Manhattan radius", but its number of shifts is that of the maximum norm.
        bandwidth: h > 0, relative to the root mean square patch distance of the sample.
        neighbours: ≥ 1, the number of neighbours to compare with, drawn at random for each mask; their terms are scaled
            up to estimate the sum over all neighbours. None: all neighbours.
        sampling: `"bernoulli"`, or `"multinomial"`: −log(1 − rate) · positions draws with replacement from s, a
            fractional part rounded at random. With a Poisson distributed number of draws the two would be equal.
        rescale: divide by the sample's mean probability of being kept, so that T = ∞ is inverted dropout and the
            magnitude of the activations is the same at meta-test. False: the published code.
        until: ≥ 0, the meta-step from which on nothing is dropped, for a last phase of training without dropout.
        seed: seed of all masks.

    Use it when the network relies on misleading texture or background: training accuracy is high, and accuracy on other
    backgrounds is low. In docs/results/ablation.md it helped only where textures misled, and made no significant
    difference elsewhere; compare with plain dropout, `temperature=inf`. It is not designed to change norms or cosines
    of the rows.

    p are the patches of its input that a layer reads, one for each position of its output; N(p) are the patches at
    shifts of up to `radius` input pixels per dimension, p included. T = ∞ is dropout at `rate`. It acts in training
    only: a layer in evaluation mode is unchanged.

    Masks are a function of the seed, the number of the meta-step, the task's slot and its part, so a repeated meta-step
    draws the same masks. Each part of a task has one set of masks in a meta-step, drawn in the first pass and shared by
    all inner steps: second-order gradients are those of one function, and the masks are constants. A second `begin` of
    the same part announces other inputs, for which further masks are drawn; `begin` with the other part and back keeps
    them. Without `begin` every pass draws new masks. Outputs of another shape have their
    own masks. Under vmap every task has its own masks. Reports `drop_rate.<layer>`, the share of its activations
    dropped in the step, and `drop_rate`, their mean.

    Differentiable: rows are unchanged, and masks are constants.

    State: the number of meta-steps.

    Cost: for the map of a mask, 0.4 to 1.1 of the forward pass of the first two layers of a four-block network on 75
    images of 84 px, up to 3 on few or small images, none at T = ∞. Memory: a mask of the shape of the output, and 20 MB
    while the map is computed; no patch is materialized. The output of the layer is multiplied in place.

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, equations 7 to 9 and figure of T; Shi et al. 2020
    (InfoDrop), arXiv 2008.04254, and its code for few-shot learning.

    Deviations: The paper does not define the constant of "∝", the place of the mask, and how often it is drawn. From
    the published code: (1) Bernoulli draws; its multinomial draws drop 1 − e^(−r), not r. (2) m is that of the sample,
    not of the batch, so samples do not influence each other, and a constant image has plain dropout instead of NaN. (3)
    The map is padded by its border instead of by zeros, which would count as information. (4) All neighbours; the code
    draws 9 with replacement. (5) Rescaled. (6) The mask is applied after the convolution; the code applies it after the
    block. `isi(layers=["3", "7"], neighbours=9, sampling="multinomial", rescale=False)` has the published place and
    sampling for a four-block network.

    >>> import torch, gradhomog
    >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Flatten())
    >>> image = torch.zeros(1, 1, 20, 20)
    >>> image[..., 5:15, 5:15] = 1.0  # a square: patches of its outline are rare, patches inside and outside are not
    >>> [round(float(p), 3) for p in ISI(layers=1).maps(encoder, image)["0"][0, 10, [0, 5, 10]]]
    [0.634, 0.0, 0.634]
    """

    state_names = {"steps": int}

    def __init__(
        self,
        layers: Annotated[int, Ge(1)] | Annotated[str, MinLen(1)] | Annotated[Sequence[str], MinLen(1)] = 2,
        rate: Annotated[float, Interval(ge=0, lt=1)] = 0.3,
        temperature: Annotated[float, Interval(ge=0, le=math.inf)] = 0.1,
        radius: Annotated[int, Ge(1)] = 3,
        bandwidth: Annotated[float, Gt(0)] = 1.0,
        neighbours: Annotated[int, Ge(1)] | None = None,
        sampling: Literal["bernoulli", "multinomial"] = "bernoulli",
        rescale: bool = True,
        until: Annotated[int, Ge(0)] | None = None,
        seed: int = 0,
    ) -> None:
        self.layers, self.rate, self.temperature, self.radius, self.bandwidth = (
            layers, rate, temperature, radius, bandwidth,
        )  # fmt: skip
        self.neighbours, self.sampling, self.rescale = neighbours, sampling, rescale
        self.until, self.seed = until, seed
        self.steps = 0
        self._current = self._new_meta_step()
        self._suspended = False

    def attach(self, encoder: nn.Module) -> list[Any]:
        self._current = self._new_meta_step()
        hooks = register_hooks(encoder, select_layers(encoder, self.layers), self._drop)
        hooks.callback(self._clear_masks)
        return [SimpleNamespace(remove=hooks.close)]

    def begin(self, key: TaskKey, part: Part, generator: torch.Generator) -> None:
        current = self._meta_step()
        if current.key != key:
            current.inputs.clear()
        if part not in current.inputs:
            current.inputs[part] = _Inputs(generator)
        elif current.part == part:
            current.inputs[part].masks.clear()
        current.key, current.part = key, part

    def update(self, step: Step) -> Mapping[str, Any]:
        return {"steps": self.steps + 1}

    def measured(self, step: Step) -> Mapping[str, float]:
        drawn = self._current.drawn
        if self._current.number != self.steps or not drawn:
            return {}
        zeros = torch.stack([torch.stack([zeros for zeros, _ in masks]).sum() for masks in drawn.values()])
        sizes = [sum(size for _, size in masks) for masks in drawn.values()]
        rates = [count / size for count, size in zip(zeros.tolist(), sizes, strict=True)]
        named = {f"drop_rate.{name}": rate for name, rate in zip(drawn, rates, strict=True)}
        return {"drop_rate": sum(rates) / len(rates), **named}

    def maps(self, encoder: nn.Module, inputs: Tensor) -> Mapping[str, Tensor]:
        """Return drop probabilities `[n, *size]` by layer, in the encoder's current mode, without dropping anything."""
        probabilities: dict[str, Tensor] = {}
        generator = torch.Generator().manual_seed(self.seed)

        def record(call: Call) -> None:
            probabilities[call.name] = 1 - self._keep(self._shares(call, call.inputs, generator))

        buffers = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
        devices = [inputs.device] if inputs.is_cuda else []
        hooks = register_hooks(encoder, select_layers(encoder, self.layers), record)
        suspended, self._suspended = self._suspended, True
        try:
            with hooks, torch.no_grad(), torch.random.fork_rng(devices):
                functional_call(encoder, buffers, (inputs,))
        finally:
            self._suspended = suspended
        return probabilities

    def _drop(self, call: Call) -> Tensor | None:
        current = self._meta_step()
        off = self._suspended or (self.until is not None and self.steps >= self.until)
        if off or not call.layer.training or call.output.numel() == 0:
            return None
        inputs = current.inputs[current.part] if current.part else _Inputs(current.generator)
        place = (call.name, call.output.shape)
        if place not in inputs.masks:
            draw = functools.partial(self._draw, call, inputs.generator)
            mask: Tensor = _WithoutGraph.apply(call.inputs, draw)  # type: ignore[no-untyped-call]
            inputs.masks[place] = mask.reshape(call.output.shape)
        # In place, which saves memory: the backward of neither convolution nor max-pooling needs its output.
        return call.output.mul_(inputs.masks[place].to(call.output.dtype))

    def _draw(self, call: Call, generator: torch.Generator, inputs: Tensor) -> Tensor:
        """Draw a mask `[n, channels, *size]` and count its zeros.

        The mask is 0 where an activation is dropped, and elsewhere the factor that compensates for dropping. `inputs`
        replace those of the call: under vmap they are the inputs of several tasks.
        """
        seed = int(torch.randint(2**62, (), generator=generator))  # drawn on the CPU, for a generator on any device
        local = torch.Generator(inputs.device).manual_seed(seed)
        shares = self._shares(call, inputs, generator)
        keep = self._keep(shares)
        mean = keep.flatten(1).mean(1)
        value = 1 / torch.where(mean > 0, mean, torch.ones_like(mean)) if self.rescale else torch.ones_like(mean)
        channels, dtype = call.output.shape[-shares.dim()], call.output.dtype
        if self.sampling == "bernoulli":
            mask, zeros = drop.bernoulli(keep, value, channels, dtype, local)
        else:
            draws = math.floor(self._draws(shares) + float(torch.rand((), generator=generator)))
            mask, zeros = drop.multinomial(shares, draws, value, channels, dtype, local)
        self._current.drawn.setdefault(call.name, []).append((zeros, mask.numel()))
        return mask

    def _shares(self, call: Call, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return the softmax of log S / T over positions, float32 `[n, *size of the output]`."""
        dims = len(call.size)
        if self.temperature == math.inf:
            size = call.output.shape[-dims:]
            return torch.full((len(inputs), *size), 1 / math.prod(size), device=inputs.device)
        shifts = neighbourhood(self.radius, dims)
        if self.neighbours is not None:
            chosen = torch.randperm(len(shifts), generator=generator)[: self.neighbours]
            shifts = [shifts[place] for place in chosen]
        log_s = log_kernel_sum(inputs, call.patches, call.size, self.radius, self.bandwidth, shifts)
        return drop.position_probabilities(pool_log_s(log_s, call.layer), self.temperature)

    def _keep(self, shares: Tensor) -> Tensor:
        if self.sampling == "bernoulli":
            return drop.keep_probabilities(shares, self.rate)
        return drop.keep_probabilities_of_draws(shares, self._draws(shares))

    def _draws(self, shares: Tensor) -> float:
        """Return r · positions: as many draws from equal shares hit 1 − e^(−r), the rate, of the positions."""
        return -math.log1p(-self.rate) * shares[0].numel()

    def _meta_step(self) -> _MetaStep:
        """Return the current meta-step, or a new one if the number of meta-steps has changed."""
        if self._current.number != self.steps:
            self._current = self._new_meta_step()
        return self._current

    def _clear_masks(self) -> None:
        """Free the masks, but keep the numbers of dropped activations for the report."""
        self._current.key = self._current.part = None
        self._current.inputs.clear()

    def _new_meta_step(self) -> _MetaStep:
        return _MetaStep(self.steps, torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{self.steps}".encode())))


@dataclass
class _Inputs:
    """Masks of the support or query inputs of a task, by call and output shape, and their generator."""

    generator: torch.Generator
    masks: dict[tuple[str, torch.Size], Tensor] = field(default_factory=dict)


@dataclass
class _MetaStep:
    """Data of one meta-step that is not part of the state.

    Attributes:
        number: the number of the meta-step.
        generator: generator for passes without `begin`.
        key, part: the arguments of the latest `begin`.
        inputs: masks of that task by part.
        drawn: for each call, the number of dropped activations (on the device) and of all activations.
    """

    number: int
    generator: torch.Generator
    key: TaskKey | None = None
    part: Part | None = None
    inputs: dict[Part, _Inputs] = field(default_factory=dict)
    drawn: dict[str, list[tuple[Tensor, int]]] = field(default_factory=dict)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ISI,
        summary="drops activations over patches that carry little information (RotoGBML)",
        reference="Zhang et al. 2023, arXiv 2303.06679, equations 7 to 9; Shi et al. 2020, arXiv 2008.04254",
        traits={"differentiable", "stateful", "stochastic", "scale_equivariant", "rotation_equivariant"},
    )
