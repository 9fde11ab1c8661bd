"""One homogenizer of a pipeline: its stages, called with what goes wrong told by plugin, distribution and version."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import gradhomog
from gradhomog.errors import GradhomogError, PluginRunError
from gradhomog.evidence import Evidence, TaskKey
from gradhomog.homogenizer import Homogenizer, Part, Removable
from gradhomog.registry import PluginInfo
from gradhomog.rows import Rows
from gradhomog.specs import STATISTICS, HomogenizerSpec


@dataclass(frozen=True, eq=False)  # identity: a homogenizer may hold tensors, which do not compare
class Member:
    """A homogenizer with where it came from; every stage is called through here, so that all results are checked.

    `info` and `spec` are None for an object that was handed in without a plugin around it: such a one may read every
    statistic, and claims nothing.
    """

    homogenizer: Homogenizer
    selector: str
    options: Mapping[str, Any]
    info: PluginInfo | None = None
    spec: HomogenizerSpec | None = None

    @property
    def needs(self) -> Set[str]:
        return STATISTICS if self.spec is None else self.spec.needs

    def __str__(self) -> str:
        return str(self.info) if self.info else f"homogenizer {type(self.homogenizer).__name__}"

    @property
    def before_rows(self) -> bool:
        """Whether it changes what the rows are, not only what is made of them."""
        return self.homogenizer.overrides("attach") or self.homogenizer.overrides("transform")

    def attach(self, encoder: nn.Module) -> list[Removable]:
        """The handles that undo what was attached: all of them, whether one or several were returned."""

        def attach(encoder: nn.Module) -> list[Any]:
            returned: Any = self.homogenizer.attach(encoder)
            return list(returned) if isinstance(returned, Iterable) else [returned]

        handles: list[Any] = self._call("attach", attach, encoder)
        for handle in handles:
            if not hasattr(handle, "remove"):
                raise self._wrong("attach", "handles with a method `remove`", handle)
        return handles

    def begin(self, key: TaskKey, part: Part) -> None:
        self._run("begin", key, part)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        changed = self._run("transform", features, keys)
        if not isinstance(changed, Tensor) or changed.shape != features.shape:
            raise self._wrong("transform", f"features of shape {tuple(features.shape)}", changed)
        return changed

    def mix(self, evidence: Evidence) -> Tensor:
        """The mixing matrix, float64 `[tasks, tasks]`; weights become the diagonal matrix that they are."""
        tasks = evidence.tasks
        result = self._run("mix", evidence)
        if not isinstance(result, Tensor) or result.shape not in ((tasks,), (tasks, tasks)):
            raise self._wrong("mix", f"weights of shape [{tasks}] or a matrix [{tasks}, {tasks}]", result)
        if not torch.isfinite(result).all():
            raise PluginRunError(f"{self} returned NaN or infinity from `mix`: {result.detach().tolist()}.")
        if result.requires_grad and not torch.is_grad_enabled():
            raise self._wrong("mix", "a tensor outside the graph, as create_graph was not asked for,", result)
        matrix = result.to(evidence.device, torch.float64)
        return torch.diag(matrix) if matrix.dim() == 1 else matrix

    def rows(self, given: Rows) -> Rows:
        result = self._run("rows", given)
        if isinstance(given, Tensor):
            same = isinstance(result, Tensor) and (result.shape, result.dtype) == (given.shape, given.dtype)
        else:
            same = (
                isinstance(result, Mapping)
                and set(result) == set(given)
                and all((result[k].shape, result[k].dtype) == (v.shape, v.dtype) for k, v in given.items())
            )
        if not same:
            raise self._wrong("rows", "rows of the structure, shapes and dtypes that it was given", result)
        changed: Rows = result
        values = [changed] if isinstance(changed, Tensor) else changed.values()
        if not all(bool(torch.isfinite(value).all()) for value in values):
            raise PluginRunError(f"{self} returned NaN or infinity from `rows`.")
        return changed

    def update(self, evidence: Evidence) -> None:
        self._run("update", evidence)

    def measured(self) -> dict[str, float | Sequence[float]]:
        return dict(self._run("measured"))

    def _run(self, stage: str, *arguments: Any) -> Any:
        return self._call(stage, getattr(self.homogenizer, stage), *arguments)

    def _call(self, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except GradhomogError:
            raise
        except Exception as cause:
            last = traceback.extract_tb(cause.__traceback__)[-1]
            raise PluginRunError(
                f"{self} raised in `{stage}`: {type(cause).__name__}: {cause} "
                f"({last.filename}:{last.lineno}; gradhomog {gradhomog.__version__})"
            ) from cause

    def _wrong(self, stage: str, expected: str, found: object) -> PluginRunError:
        what = type(found).__name__
        if isinstance(found, Tensor):
            what = f"a tensor {tuple(found.shape)} {found.dtype}{' with a graph' if found.requires_grad else ''}"
        elif isinstance(found, Mapping):
            what = f"a dict of { ({k: tuple(getattr(v, 'shape', ())) for k, v in found.items()}) }"
        return PluginRunError(f"{self} must return from `{stage}` {expected}; got {what}.")
