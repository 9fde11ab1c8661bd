"""`OpenTask`: the task inside `with step.task()`, which later holds its results; `PipelineNeeds`: what it must pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from gradhomog import OptionError, Pipeline, TaskKey
from gradhomog_adapters._custom_loop.snapshot import Snapshot
from gradhomog_adapters._gradients import differentiate, zeros_for_missing


class PipelineNeeds:
    """Inputs that a pipeline requires from a task besides its loss."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe = pipe
        self.transforms = any(homogenizer.overrides("transform") for homogenizer in pipe)
        self.acts_on_begin = any(homogenizer.overrides("begin") for homogenizer in pipe)
        # A homogenizer object without a spec may read all inputs: features are stored for it, but not required.
        declared = any(member.declares_needs and "features" in member.needs for member in pipe.members)
        self.requires_features = self.transforms or declared
        self.stores_features = self.requires_features or any("features" in member.needs for member in pipe.members)


class OpenTask:
    """A task while it is open, and then its results without a graph: loss, row, features and feature gradients.

    `row` contains a gradient by parameter name, None for parameters that no loss depends on.
    """

    def __init__(
        self,
        key: TaskKey,
        needs: PipelineNeeds,
        parameters: Mapping[str, Tensor],
        snapshot: Snapshot,
        inner_given: bool,
    ) -> None:
        self.key, self._needs, self._snapshot, self._inner_given = key, needs, snapshot, inner_given
        self._parameters = parameters
        self._part: Literal["support", "query"] = "support"
        self._queried = False
        self._stage_features: list[Tensor] = []  # of the last query pass
        self._differentiated: list[Tensor] = []  # those that `feature_grads` belong to
        self.loss: Tensor | None = None
        self.row: dict[str, Tensor | None] = dict.fromkeys(parameters)
        self.features: list[Tensor] = []
        self.feature_grads: list[Tensor] = []
        self.targets: list[Tensor] = []

    def __str__(self) -> str:
        return f"task {self.key.slot}" + (f" (domain {self.key.domain!r})" if self.key.domain else "")

    def support(self) -> None:
        self._part = "support"
        self._needs.pipe.begin(self.key, "support")

    def query(self, targets: Tensor | None) -> None:
        self._part, self._queried = "query", True
        self._needs.pipe.begin(self.key, "query")
        self.targets = [] if targets is None else [targets.detach()]

    def transform(self, features: Tensor) -> Tensor:
        if self._part != "query" or not self._needs.stores_features:
            return features
        if features.dim() != 2:
            raise OptionError(f"`features` must have shape [queries, features]; got {tuple(features.shape)}.")
        if not features.requires_grad:  # the features of a frozen encoder are leaves: derivatives end there
            features = features.detach().requires_grad_()
        self._stage_features = self._needs.pipe.transform(features[None], [self.key])
        return self._stage_features[-1][0]

    def add(self, loss: Tensor, retain_graph: bool) -> None:
        self._check_loss(loss)
        self._check_calls()
        row, feature_grads = self._differentiate(loss.reshape(()), retain_graph)
        for name, gradient in row.items():
            before = self.row[name]
            self.row[name] = before if gradient is None else gradient if before is None else before + gradient
        value = loss.detach().reshape(()).double()
        self.loss = value if self.loss is None else self.loss + value
        if not self._stage_features:
            return
        if self._stage_features is self._differentiated:  # a loss before used the same features
            self.feature_grads = [a + b for a, b in zip(self.feature_grads, feature_grads, strict=True)]
        else:
            self.features, self.feature_grads = [x[0].detach() for x in self._stage_features], feature_grads
            self._differentiated = self._stage_features

    def close(self) -> None:
        """Release the graph of the features."""
        self._stage_features, self._differentiated = [], []

    def _check_loss(self, loss: Tensor) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise OptionError(f"`loss` of {self} must be a scalar tensor, the mean over its queries; got {found}.")
        if not loss.requires_grad:
            raise OptionError(
                f"`loss` of {self} must have a graph; it has none. Compute it from the network's outputs without "
                "torch.no_grad, detach or item."
            )
        if split := self._snapshot.split_parameters():
            raise OptionError(
                f"{' and '.join(f'`{name}`' for name in split)} are the same (tied) parameter, but TorchOpt's inner "
                "loop replaced them by different tensors. Adapt only modules that do not share it "
                "(MetaSGD(net.head)), or use gradhomog_adapters.maml, which keeps it tied."
            )

    def _check_calls(self) -> None:
        needs = self._needs
        if (needs.acts_on_begin or needs.requires_features) and not self._queried:
            raise OptionError(
                f"the pipeline '{needs.pipe}' distinguishes support and query inputs, but {self} did not call "
                "step.query. Call step.query() before the network runs on query inputs."
            )
        if needs.requires_features and not self._stage_features:
            raise OptionError(
                f"the pipeline '{needs.pipe}' requires query features, but {self} passed none. Between encoder and "
                "head write features = step.transform(features)."
            )

    def _differentiate(self, loss: Tensor, retain_graph: bool) -> tuple[dict[str, Tensor | None], list[Tensor]]:
        """Gradients w.r.t. the parameters, by name, and w.r.t. the features before and after each `transform` stage."""
        features = self._stage_features
        try:
            row, by_features = differentiate(loss, self._parameters, features, retain_graph)
        except RuntimeError as cause:
            if "second time" not in str(cause):  # PyTorch has no exception class for a freed graph
                raise
            raise OptionError(self._freed_message()) from cause
        if all(gradient is None for gradient in row.values()):
            raise OptionError(
                f"`loss` of {self} must depend on a parameter of `net` that requires grad; it depends on none. The "
                "graph is cut (detach, a copy of the network), or the loss is that of another network."
            )
        unused = bool(features) and by_features[-1] is None and features is not self._differentiated
        if unused and self._needs.transforms:
            raise OptionError(f"`loss` of {self} must depend on the result of step.transform. Pass it to the head.")
        return row, [gradient[0].detach() for gradient in zeros_for_missing(by_features, features)]

    def _freed_message(self) -> str:
        if self.loss is not None:
            return (
                f"the graph of {self} was freed by step.add. Add the sum of its losses, or write "
                "step.add(loss, retain_graph=True) for all but the last."
            )
        if not self._inner_given:
            return (
                f"`loss` of {self} depends on the graph of an earlier task: the inner optimizer keeps its state "
                "(momentum, moments) between tasks. Write meta_step(net, pipe, inner=optimizer), or create a new "
                "optimizer in each task."
            )
        return (
            f"`loss` of {self} depends on the graph of an earlier task. Pass every optimizer that adapts `net` as "
            "`inner`, and do not use tensors of one task in another."
        )
