"""One task of a user's own loop: from the losses that it adds to its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from gradhomog import OptionError, Pipeline, TaskKey
from gradhomog_adapters._own_loop.restoring import Restored
from gradhomog_adapters._rows.gradients import zeros_for_missing
from gradhomog_adapters._rows.on_graph import differentiate


class Wishes:
    """What a pipeline has to be told of a task besides its loss."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe = pipe
        self.transforms = any(homogenizer.overrides("transform") for homogenizer in pipe)
        self.parts = any(homogenizer.overrides("begin") for homogenizer in pipe)
        # An object without a plugin around it may read everything: features are kept for it, but not demanded.
        self.features = self.transforms or any(m.declares_needs and "features" in m.needs for m in pipe.members)
        self.features_if_any = self.features or any("features" in member.needs for member in pipe.members)


class OwnTask:
    """A task while it is open, and what is left of it: loss, row, features and their cotangents, outside any graph.

    `row` holds a gradient by parameter name, None where no loss depends on the parameter.
    """

    def __init__(
        self, key: TaskKey, wishes: Wishes, parameters: Mapping[str, Tensor], restored: Restored, inner_given: bool
    ) -> None:
        self.key, self._wishes, self._restored, self._inner_given = key, wishes, restored, inner_given
        self._parameters = parameters
        self._part: Literal["support", "query"] = "support"
        self._queried = False
        self._taps: list[Tensor] = []
        self.loss: Tensor | None = None
        self.row: dict[str, Tensor | None] = dict.fromkeys(parameters)
        self.features: list[Tensor] = []
        self.cotangents: list[Tensor] = []
        self.targets: list[Tensor] = []

    def __str__(self) -> str:
        return f"task {self.key.slot}" + (f" (domain {self.key.domain!r})" if self.key.domain else "")

    def support(self) -> None:
        self._part = "support"
        self._wishes.pipe.begin(self.key, "support")

    def query(self, targets: Tensor | None) -> None:
        self._part, self._queried = "query", True
        self._wishes.pipe.begin(self.key, "query")
        self.targets = [] if targets is None else [targets.detach()]

    def transform(self, features: Tensor) -> Tensor:
        if self._part != "query" or not self._wishes.features_if_any:
            return features
        if features.dim() != 2:
            raise OptionError(f"`features` must have shape [queries, features]; got {tuple(features.shape)}.")
        if not features.requires_grad:  # a frozen encoder: its features are where the derivatives end
            features = features.detach().requires_grad_()
        self._taps = self._wishes.pipe.transform(features[None], [self.key])
        return self._taps[-1][0]

    def add(self, loss: Tensor, retain_graph: bool) -> None:
        self._check_loss(loss)
        self._check_told()
        row, cotangents = self._differentiate(loss.reshape(()), retain_graph)
        for name, gradient in row.items():
            before = self.row[name]
            self.row[name] = before if gradient is None else gradient if before is None else before + gradient
        value = loss.detach().reshape(()).double()
        self.loss = value if self.loss is None else self.loss + value
        if self._taps:
            self.features, self.cotangents = [tap[0].detach() for tap in self._taps], cotangents
            self._taps = []

    def close(self) -> None:
        """Let go of the graph that features may hold."""
        self._taps = []

    def _check_loss(self, loss: Tensor) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise OptionError(f"`loss` of {self} must be a scalar tensor, the mean over its queries; got {found}.")
        if not loss.requires_grad:
            raise OptionError(
                f"`loss` of {self} must have a graph; it has none. Compute it from the network's outputs without "
                "torch.no_grad, detach or item."
            )
        if apart := self._restored.untied():
            raise OptionError(
                f"{' and '.join(apart)} are one parameter, but TorchOpt's inner loop has made one of each. Adapt only "
                "modules that do not share it (MetaSGD(net.head)), or use gradhomog_adapters.maml, which keeps it one."
            )

    def _check_told(self) -> None:
        wishes = self._wishes
        if (wishes.parts or wishes.features) and not self._queried:
            raise OptionError(
                f"the pipeline '{wishes.pipe}' tells support from query inputs, and {self} did not say where the query "
                "begins. Call step.query() before the network runs on query inputs."
            )
        if wishes.features and not self._taps and not self.features:
            raise OptionError(
                f"the pipeline '{wishes.pipe}' works on query features, and {self} showed none. Between encoder and "
                "head write features = step.transform(features)."
            )

    def _differentiate(self, loss: Tensor, retain_graph: bool) -> tuple[dict[str, Tensor | None], list[Tensor]]:
        """Derivatives by the parameters, by name, and by the features at every tap."""
        taps = self._taps
        try:
            row, by_taps = differentiate(loss, self._parameters, taps, retain_graph)
        except RuntimeError as cause:
            if "second time" not in str(cause):  # PyTorch has no class of its own for a graph that was freed
                raise
            raise OptionError(self._freed()) from cause
        if all(gradient is None for gradient in row.values()):
            raise OptionError(
                f"`loss` of {self} must depend on a parameter of `net` that requires grad; it depends on none. The "
                "graph is cut somewhere (detach, a copy of the network), or the loss is another network's."
            )
        if self._wishes.transforms and taps and by_taps[-1] is None:
            raise OptionError(f"`loss` of {self} must depend on what step.transform returned. Hand that to the head.")
        return row, [gradient[0].detach() for gradient in zeros_for_missing(by_taps, taps)]

    def _freed(self) -> str:
        if self.loss is not None:
            return (
                f"the graph of {self} was freed by step.add. Add the sum of its losses at once, or write "
                "step.add(loss, retain_graph=True) for all but the last."
            )
        if not self._inner_given:
            return (
                f"`loss` of {self} reaches into the graph of an earlier task: the inner optimizer carries its state "
                "(momentum, moments) from task to task. Write meta_step(net, pipe, inner=optimizer), or make the "
                "optimizer anew in each task."
            )
        return (
            f"`loss` of {self} reaches into the graph of an earlier task. Put every optimizer that adapts `net` into "
            "`inner`, and compute nothing within one task that another one uses."
        )
