"""The bridge to TorchJD: any of its aggregators as a homogenizer."""

import importlib
import importlib.metadata
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradhomog import (
    Homogenizer,
    HomogenizerSpec,
    OptionError,
    PluginLoadError,
    PluginRunError,
    StageResult,
    Step,
    did_you_mean,
    hookimpl,
)
from gradhomog_plugins._columns import wide_dtype

# Values of arguments that have no default in TorchJD: those of the methods' authors.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "CAGrad": {"c": 0.4},  # Liu et al. 2021: their scripts for NYU-v2 and CityScapes
    "FairGrad": {"alpha": 2.0},  # Ban and Ji 2024: their scripts for CelebA and QM9
}

BASES = ("Aggregator", "WeightedAggregator", "GramianWeightedAggregator")
"""Abstract base classes of TorchJD's aggregators."""


class TorchJD(Homogenizer):
    """The direction of a TorchJD aggregator A, applied to the matrix J of the rows.

        d = A(J) / f(N),  f(N) = A([[1], …, [1]]), N rows;  paper's scale: d = A(J)

    Args:
        aggregator: the name of one of TorchJD's classes: `"AlignedMTL"`, `"CAGrad"`, `"ConFIG"`, `"Constant"`,
            `"DualProj"`, `"ExcessMTL"`, `"FairGrad"`, `"GradDrop"`, `"GradVac"`, `"IMTLG"`, `"Krum"`, `"MGDA"`,
            `"Mean"`, `"NashMTL"`, `"PCD"`, `"PCGrad"`, `"Random"`, `"Sum"`, `"TrimmedMean"`, `"UPGrad"`, and those of
            later releases.
        options: arguments of the class by name. For a tensor, a list of numbers; for a projector, a table of options of
            `QuadprogProjector`. Where TorchJD has no default: CAGrad `c=0.4` and FairGrad `alpha=2.0`, as in their
            authors' scripts; NashMTL `n_tasks`, the tasks of the step; `n_byzantine` of Krum, `trim_number` of
            TrimmedMean and `weights` of Constant are required.
        seed: seed of its random numbers; the global generators are not changed.

    Use it when you compare with TorchJD in the same scale, need a test oracle, or need an aggregator that is not built
    in here, such as `"PCD"`. For all others the built-in homogenizers are preferable: they are differentiable and have
    no absolute thresholds.

    The mathematics is TorchJD's, including its thresholds: UPGrad and DualProj are the mean, and CAGrad is zero, for
    rows that are all shorter than 0.01. The measured properties of each aggregator are in docs/results/torchjd.md.
    Requires TorchJD (`pip install 'gradhomog[compare]'`), imported when a homogenizer is constructed; some aggregators
    require further packages.

    Not differentiable.

    State: the aggregator's `state_dict`: N² numbers for GradVac, N numbers for PCD, and for ExcessMTL as many numbers
    as the rows contain; and the tasks' names. It restarts when the tasks or the dtype change. State outside the
    `state_dict` cannot be saved: NashMTL restarts in every step, and ExcessMTL does not accept `n_warmup_steps`.

    Cost: that of the aggregator. In addition, rows in a dict of several tensors are copied into one matrix,
    half-precision rows into float32; A is also called on a column of N ones, and an aggregator with state twice,
    because TorchJD loads a `state_dict` only after a first call.

    Source: Quinton and Rey 2024, "Jacobian Descent for Multi-Objective Optimization", arXiv 2406.16232, and
    https://github.com/SimplexLab/TorchJD; the papers of the methods are listed in the documentation of the classes.

    Deviations: (1) The division by f(N), unless scale="paper".

    >>> import torch, gradhomog
    >>> jacobian = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
    >>> gradhomog.pipeline("torchjd(aggregator='IMTLG')").combine(jacobian)
    tensor([0.0767, 1.0000, 1.0000])
    """

    state_names = ("memory", "tasks")

    def __init__(self, aggregator: str = "UPGrad", options: Mapping[str, Any] = {}, seed: int = 0) -> None:
        self.aggregator, self.options, self.seed = aggregator, dict(options), seed
        self.memory: dict[str, Tensor] = {}
        self.tasks: list[str] = []
        kind = find_aggregator(aggregator)
        if aggregator == "ExcessMTL" and self.options.get("n_warmup_steps"):
            raise OptionError(
                "torchjd: `n_warmup_steps` of ExcessMTL must be 0: TorchJD counts these steps outside its "
                "`state_dict`, so the count cannot be saved."
            )
        try:
            self._new_aggregator(torch.ones(1, 1))
        except ImportError as cause:
            raise PluginLoadError(
                f"torchjd: {aggregator} needs packages that are not installed: {cause} "
                "For all of TorchJD's aggregators: pip install 'torchjd[full]'"
            ) from cause
        except (TypeError, ValueError, RuntimeError) as cause:
            raise OptionError(
                f"torchjd: {aggregator} does not accept `options`={self.options}: {cause} "
                f"Its signature: {aggregator}{inspect.signature(kind)}."
            ) from cause

    def rows(self, step: Step) -> StageResult:
        blocks = step.jacobian.materialize()
        flat = [block.reshape(step.tasks, block[0].numel()) for block in blocks.values()]
        matrix = torch.cat(flat, dim=1) if len(flat) > 1 else flat[0]
        matrix, tasks = matrix.to(wide_dtype(matrix)), step.names
        if self.memory and set(tasks) == set(self.tasks) and len(set(tasks)) == len(tasks):  # the order of its state
            matrix, tasks = matrix[[tasks.index(name) for name in self.tasks]], self.tasks
        try:
            with torch.random.fork_rng([matrix.device] if matrix.is_cuda else []):
                ones = torch.ones(step.tasks, 1, dtype=torch.float64)
                factor = self._new_aggregator(ones)(ones).item()
                aggregator = self._restored_aggregator(matrix, tasks)
                torch.manual_seed(step.generator.initial_seed())
                vector = aggregator(matrix)
        except Exception as cause:
            raise PluginRunError(
                f"torchjd: {self.aggregator} of TorchJD {version()} raised {type(cause).__name__} for {step.tasks} "
                f"task{'s' if step.tasks > 1 else ''}: {cause} Change the `options`, or use another aggregator."
            ) from cause
        if not 0 < factor < math.inf:
            raise OptionError(
                f"torchjd: with these `options`, {self.aggregator} maps {step.tasks} identical rows to {factor:g} "
                "times the row; the factor must be positive and finite. Change `options`."
            )
        parts = (vector / factor).split([part.shape[1] for part in flat])
        direction = {
            name: part.to(block.dtype).reshape(block.shape[1:])
            for (name, block), part in zip(blocks.items(), parts, strict=True)
        }
        memory = {name: value.detach().clone() for name, value in aggregator.state_dict().items()}
        return StageResult(step.jacobian.repeat(direction), aux=(factor, memory, tasks))

    def paper_scale(self, step: Step) -> float:
        factor: float = step.aux[0]
        return factor

    def update(self, step: Step) -> Mapping[str, Any]:
        return {"memory": step.aux[1], "tasks": step.aux[2]}

    def _new_aggregator(self, matrix: Tensor) -> Any:
        """Return a new aggregator in its initial state, for matrices of this number of rows, dtype and device."""
        arguments = {**DEFAULTS.get(self.aggregator, {}), **self.options}
        if self.aggregator == "NashMTL":
            arguments.setdefault("n_tasks", len(matrix))
        return find_aggregator(self.aggregator)(**{name: _argument(value, matrix) for name, value in arguments.items()})

    def _restored_aggregator(self, matrix: Tensor, tasks: Sequence[str]) -> Any:
        """Return a new aggregator with the saved state, or in its initial state if the saved state does not fit."""
        aggregator = self._new_aggregator(matrix)
        if not self.memory or tasks != self.tasks:
            return aggregator
        aggregator(matrix)  # before the first call its buffers are None, and `load_state_dict` raises
        if _shapes_and_dtypes(aggregator.state_dict()) != _shapes_and_dtypes(self.memory):
            return self._new_aggregator(matrix)
        aggregator.load_state_dict(self.memory)
        return aggregator


def find_aggregator(name: str) -> type:
    """Return TorchJD's aggregator with this class name.

    Raises:
        PluginLoadError: TorchJD is missing or too old.
        OptionError: there is no such aggregator.
    """
    known = aggregators()
    if name not in known:
        raise OptionError(
            f"torchjd: `aggregator` must be the name of an aggregator of TorchJD {version()}; got {name!r}."
            f"{did_you_mean(name, known)} Available: {', '.join(known)}."
        )
    return known[name]


def aggregators() -> dict[str, type]:
    """Return all aggregators of the installed TorchJD by class name; TorchJD is imported here, not with this module."""
    try:
        module = importlib.import_module("torchjd.aggregation")
    except ImportError as cause:
        raise PluginLoadError(
            f"torchjd: the library TorchJD cannot be imported ({cause}). Run: pip install 'gradhomog[compare]'"
        ) from cause
    if not all(hasattr(module, name) for name in BASES):
        raise PluginLoadError(
            f"torchjd: needs TorchJD 0.18 or newer; {version()} is installed. Run: pip install 'gradhomog[compare]'"
        )
    classes = {name: getattr(module, name) for name in sorted(module.__all__) if name not in BASES}
    return {name: kind for name, kind in classes.items() if issubclass(kind, module.Aggregator)}


def version() -> str:
    """Return the version of the installed TorchJD."""
    return importlib.metadata.version("torchjd")


def _argument(value: Any, matrix: Tensor) -> Any:
    """Return an option as TorchJD accepts it: a list of numbers as a tensor like the rows, a table as a projector."""
    if isinstance(value, (list, tuple)):
        return torch.tensor(value, dtype=matrix.dtype, device=matrix.device)
    if isinstance(value, Tensor):
        return value.to(matrix)
    if isinstance(value, Mapping):
        return importlib.import_module("torchjd.linalg").QuadprogProjector(**value)
    return value


def _shapes_and_dtypes(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in state.items()}


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=TorchJD,
        summary="any aggregator of the library TorchJD: UPGrad, CAGrad, Nash-MTL, …",
        reference="Quinton and Rey 2024, arXiv 2406.16232",
        traits={"stateful"},
        needs={"jacobian"},
    )
