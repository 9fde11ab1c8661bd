"""Class labels of a `torch.utils.data.Dataset`, read without loading its examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from gradhomog.errors import DataError

Labels = Sequence[int] | NDArray[np.integer[Any]] | Tensor


def read_labels(dataset: Dataset[Any], labels: Labels | None) -> NDArray[np.int64]:
    """Return `labels` as integers `[examples]`, or the labels of the data set: see `gradhomog.TaskDataset`.

    Raises:
        DataError: the labels are missing, are not integers, or are not one per example.
    """
    if isinstance(dataset, IterableDataset):
        raise DataError(
            f"`dataset` must be a map-style dataset, because examples are drawn by index; got {type(dataset).__name__}"
            ", an IterableDataset. Store its examples, for example in a list, and pass `labels=`."
        )
    found = _stored_labels(dataset) if labels is None else _convert_labels("labels", labels)
    size = len(dataset)  # type: ignore[arg-type]
    if len(found) != size:
        raise DataError(
            f"`labels` must contain one label for each of the {size} examples of {type(dataset).__name__}; "
            f"got {len(found)}."
        )
    return found


def _stored_labels(dataset: Dataset[Any]) -> NDArray[np.int64]:
    if isinstance(dataset, Subset):
        return _stored_labels(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_stored_labels(part) for part in dataset.datasets])
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        return _convert_labels("TensorDataset.tensors[1]", dataset.tensors[1])
    for name in ("targets", "labels"):
        if (found := getattr(dataset, name, None)) is not None:
            return _convert_labels(f"{type(dataset).__name__}.{name}", found)
    raise DataError(
        f"{type(dataset).__name__} has neither `targets` nor `labels`, but tasks are drawn by class. Pass `labels=`, "
        "one integer per example; [y for _, y in dataset] loads every example once."
    )


def _convert_labels(name: str, labels: Any) -> NDArray[np.int64]:
    try:
        values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except ValueError as cause:
        raise DataError(f"`{name}` must contain one integer per example; got a ragged list ({cause}).") from cause
    if values.ndim != 1:
        advice = "Convert one-hot labels by argmax(1)" if values.ndim == 2 else "Pass one label per example"
        raise DataError(f"`{name}` must have shape [examples]; got {values.shape}. {advice}.")
    if not np.issubdtype(values.dtype, np.integer):
        found = f"{type(labels[0]).__name__} {labels[0]!r}" if len(values) else "no label"
        raise DataError(
            f"`{name}` must be integers; got dtype {values.dtype}; the first is {found}. Number the classes: "
            "numpy.unique(labels, return_inverse=True)[1]."
        )
    return values.astype(np.int64)
