"""Invariant self-information of RotoGBML: activations over patches that their neighbours repeat are dropped."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, TaskKey, hookimpl
from gradhomog_plugins._isi.layers import Call, choose, watch
from gradhomog_plugins._isi.masks import Masks
from gradhomog_plugins._isi.outside import outside

Part = Literal["support", "query"]


class ISI(Homogenizer):
    """Dropout that prefers patches without information: texture and background rather than outlines.

    S(p) = Σ_{p' ∈ N(p)} exp(−‖p − p'‖² / (2 h² m)),  information Î(p) = −log S(p),  m = mean ‖p − p'‖² of the sample
    s = softmax over positions of log S / T  (∝ e^{−Î/T}),  P = 1 − (1 − rate)^(positions · s)
    output ← output · mask / (1 − P̄),  mask 0 with probability P, for each channel on its own

    p are the patches of its input that a layer reads, one for each position of its output; N(p) those at shifts of up
    to `radius` input pixels per dimension, p included. T = ∞ is dropout at `rate`.

    Args:
        layers: the first so many convolutions, or all if there are fewer; or a name in the encoder, or a glob pattern,
            or several: convolutions of 1 to 3 dimensions, and max-poolings of a convolution's output (with the least S
            of each window): behind block and pooling is where the published code drops.
        rate: in [0, 1): P where all patches are equally common. P̄ is lower, the more so the smaller T.
        temperature: T ≥ 0. 0: only where S is largest, shared among equals; P there is 1 − (1 − rate)^positions, so
            close to 1 on large maps.
        radius: C ≥ 1. All (2C + 1)^dims shifts: the paper's "Manhattan radius" is a maximum norm by its own count.
        bandwidth: h > 0, relative to the root mean square patch distance of the sample.
        neighbours: compare with so many others, drawn anew for each mask and counted for all; None: all of them.
        sampling: `"bernoulli"`, or `"multinomial"`: −log(1 − rate) · positions draws with replacement from s, a
            fraction rounded at random. Were their number Poisson distributed, it would be Bernoulli to the letter.
        parts: drop on `"support"`, on `"query"`, or on `"both"`.
        rescale: divide by the sample's mean probability to be kept, so that T = ∞ is inverted dropout and the size of
            what follows does not change at meta-test. False: the published code.
        until: the identity from this meta-step on, for a last phase of training without it.
        seed: of the generator that all masks come from.

    Training only: a layer in evaluation mode is left alone. Each part of a task has one set of masks in a meta-step,
    drawn in the first pass and shared by all inner steps: second-order gradients are those of one function, and the
    masks are constants to them. Another task, the same `begin` once more, and `update` discard them; `begin` with the
    other part and back does not. Where nobody calls `begin`, every pass draws afresh, whatever `parts` is. Outputs of
    another shape get masks of their own. Under vmap every task gets its own.

    Differentiable: rows are passed through. State: the generator and the number of meta-steps. Random numbers are used
    in the order of the tasks. Cost of a mask: for the map, 0.4 to 1.1 of the forward pass of the first two layers of a
    four-block network on 75 images of 84 px, up to 3 on few or small ones, none at T = ∞. Memory: a mask like the
    output, and 40 MB while the map is made; no patch is ever formed. The layer's output is multiplied in place.

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, equations 7 to 9 and figure of T; Shi et al. 2020
    (InfoDrop), arXiv 2008.04254, and its code for few-shot learning.

    Deviations from the paper: it leaves open what "∝" is calibrated to, where the mask acts and how often it is drawn.
    From the published code: (1) Bernoulli draws; its multinomial ones drop 1 − e^(−r), not r; (2) m is the sample's,
    not the batch's, so samples do not influence each other and a constant image is plain dropout rather than NaN; (3)
    the map is continued by its border rather than by zeros, which look like information; (4) all neighbours, where it
    draws 9 with replacement; (5) rescaled; (6) at the convolution, where it drops behind the block.
    `isi(layers=["3", "7"], neighbours=9, sampling="multinomial", rescale=False)` is the published placement and
    sampling for a four-block network.

    >>> import torch, gradhomog
    >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Flatten())
    >>> image = torch.zeros(1, 1, 20, 20)
    >>> image[..., 5:15, 5:15] = 1.0  # a square: its outline is rare among its surroundings, ground and inside are not
    >>> [round(float(p), 3) for p in ISI(layers=1).maps(encoder, image)["0"][0, 10, [0, 5, 10]]]
    [0.634, 0.0, 0.634]
    """

    carried = ("generator", "steps")

    def __init__(
        self,
        layers: int | str | Sequence[str] = 2,
        rate: float = 0.3,
        temperature: float = 0.1,
        radius: int = 3,
        bandwidth: float = 1.0,
        neighbours: int | None = None,
        sampling: Literal["bernoulli", "multinomial"] = "bernoulli",
        parts: Literal["both", "support", "query"] = "both",
        rescale: bool = True,
        until: int | None = None,
        seed: int = 0,
    ) -> None:
        if not layers or (isinstance(layers, int) and layers < 1):
            raise OptionError(f"isi: `layers` must be at least 1, or name layers; got {layers!r}.")
        if not 0 <= rate < 1:
            raise OptionError(f"isi: `rate` must be at least 0 and below 1; got {rate!r}.")
        if not temperature >= 0:
            raise OptionError(f"isi: `temperature` must not be negative; got {temperature!r}. Dropout is inf.")
        if not 0 < bandwidth < math.inf:
            raise OptionError(f"isi: `bandwidth` must be positive and finite; got {bandwidth!r}.")
        for name, value, least in (("radius", radius, 1), ("neighbours", neighbours, 1), ("until", until, 0)):
            if value is not None and value < least:
                raise OptionError(f"isi: `{name}` must be at least {least}; got {value!r}.")
        self.layers, self.parts, self.until = layers, parts, until
        self.masks = Masks(rate, temperature, radius, bandwidth, neighbours, sampling, rescale)
        self.generator, self.steps = torch.Generator().manual_seed(seed), 0
        self._task: tuple[TaskKey, Part] | None = None
        self._held: dict[tuple[Part | None, str, torch.Size], Tensor] = {}  # masks, by call and shape of the output
        # Activations dropped since the last step (on the device), and of how many; by call.
        self._drawn: dict[str, list[tuple[Tensor, int]]] = {}
        self._measured: dict[str, float] = {}
        self._suspended = False

    def attach(self, encoder: nn.Module) -> list[Any]:
        self._forget()
        self._drawn.clear()
        forget = SimpleNamespace(remove=self._forget)
        return [*watch(encoder, choose(encoder, self.layers), self._drop), forget]

    def begin(self, key: TaskKey, part: Part) -> None:
        if self._task is None or self._task[0] != key:
            self._held.clear()
        elif self._task[1] == part:
            self._held = {place: mask for place, mask in self._held.items() if place[0] != part}
        self._task = (key, part)

    def update(self, evidence: Evidence) -> None:
        self.steps += 1
        self._measured = self._rates()
        self._drawn.clear()
        self._forget()

    def measured(self) -> Mapping[str, float]:
        """`drop_rate.<layer>`, the share of its activations dropped in the last step; `drop_rate`, their mean."""
        return self._measured

    def maps(self, encoder: nn.Module, inputs: Tensor) -> Mapping[str, Tensor]:
        """Drop probabilities `[n, *size]` by layer, in the mode that the encoder is in, nothing dropped before."""
        found: dict[str, Tensor] = {}

        def note(call: Call) -> None:
            found[call.name] = self.masks.drop_probabilities(call, self.generator)

        state, suspended = self.generator.get_state(), self._suspended
        self._suspended = True
        handles = watch(encoder, choose(encoder, self.layers), note)
        buffers = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
        try:
            with torch.no_grad(), torch.random.fork_rng([inputs.device] if inputs.is_cuda else []):
                functional_call(encoder, buffers, (inputs,))
        finally:
            for handle in handles:
                handle.remove()
            self._suspended = suspended
            self.generator.set_state(state)
        return found

    def _drop(self, call: Call) -> Tensor | None:
        part = self._task[1] if self._task else None
        off = self._suspended or (self.until is not None and self.steps >= self.until)
        if off or not call.layer.training or call.output.numel() == 0 or self.parts not in ("both", part or self.parts):
            return None
        place = (part, call.name, call.output.shape)
        mask = self._held.get(place)
        if mask is None:
            mask = outside(functools.partial(self._draw, call), call.inputs).reshape(call.output.shape)
            if part:
                self._held[place] = mask
        # In place: neither convolution nor max-pooling needs its output to differentiate, and the memory is there.
        return call.output.mul_(mask.to(call.output.dtype))

    def _draw(self, call: Call, inputs: Tensor) -> Tensor:
        mask, zeros = self.masks.draw(call, inputs, self.generator)
        self._drawn.setdefault(call.name, []).append((zeros, mask.numel()))
        return mask

    def _rates(self) -> dict[str, float]:
        if not self._drawn:
            return {}
        zeros = torch.stack([torch.stack([zeros for zeros, _ in drawn]).sum() for drawn in self._drawn.values()])
        sizes = [sum(size for _, size in drawn) for drawn in self._drawn.values()]
        rates = [count / size for count, size in zip(zeros.tolist(), sizes, strict=True)]
        named = {f"drop_rate.{name}": rate for name, rate in zip(self._drawn, rates, strict=True)}
        return {"drop_rate": sum(rates) / len(rates), **named}

    def _forget(self) -> None:
        self._task = None
        self._held.clear()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ISI,
        summary="drops activations over patches that carry little information (RotoGBML)",
        reference="Zhang et al. 2023, arXiv 2303.06679, equations 7 to 9; Shi et al. 2020, arXiv 2008.04254",
        traits={"differentiable", "stateful", "stochastic", "scale_equivariant", "rotation_equivariant"},
    )
