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
    """The labels `[examples]` that are given, or those of the data set: see `gradhomog.TaskDataset`.

    Raises:
        DataError: there are none, they are not integers, or not one per example.
    """
    if isinstance(dataset, IterableDataset):
        raise DataError(
            f"`dataset` must be a map-style dataset, as examples are drawn by index; got {_kind(dataset)}, an "
            "IterableDataset. Store its examples, e.g. in a list with `labels=`."
        )
    found = _stored(dataset) if labels is None else _integers("labels", labels)
    size = len(dataset)  # type: ignore[arg-type]
    if len(found) != size:
        raise DataError(
            f"`labels` must hold one label for each of the {size} examples of {_kind(dataset)}; got {len(found)}."
        )
    return found


def _stored(dataset: Dataset[Any]) -> NDArray[np.int64]:
    if isinstance(dataset, Subset):
        return _stored(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_stored(part) for part in dataset.datasets])
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        return _integers("TensorDataset.tensors[1]", dataset.tensors[1])
    for name in ("targets", "labels"):
        if (found := getattr(dataset, name, None)) is not None:
            return _integers(f"{_kind(dataset)}.{name}", found)
    raise DataError(
        f"{_kind(dataset)} has neither `targets` nor `labels`, and tasks are drawn by class. Give `labels=`, one "
        "integer per example; [y for _, y in dataset] loads every example once."
    )


def _integers(name: str, labels: Any) -> NDArray[np.int64]:
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(_sequence(name, labels))
    if values.ndim != 1:
        advice = "Give argmax(1) of one-hot labels" if values.ndim == 2 else "Give one label per example"
        raise DataError(f"`{name}` must have shape [examples]; got {values.shape}. {advice}.")
    if not np.issubdtype(values.dtype, np.integer):
        found = f"{type(labels[0]).__name__} {labels[0]!r}" if len(values) else "no label"
        raise DataError(
            f"`{name}` must be integers; got dtype {values.dtype}, the first is {found}. Number the classes: "
            "numpy.unique(labels, return_inverse=True)[1]."
        )
    return values.astype(np.int64)


def _sequence(name: str, labels: Any) -> Any:
    """Labels that NumPy can read as one array: lists of lists of several lengths are refused by name."""
    try:
        np.asarray(labels)
    except ValueError as cause:
        raise DataError(f"`{name}` must hold one integer per example; it is ragged ({cause}).") from cause
    return labels


def _kind(dataset: Dataset[Any]) -> str:
    return type(dataset).__name__
