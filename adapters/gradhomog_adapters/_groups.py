"""The groups of a batch: a column that names the group of each example, and the mean loss of each group's tokens."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradhomog import OptionError

IGNORED = -100
"""The label of a token that does not count."""


@dataclass
class CollatesGroups:
    """A collator that adds the number of each example's group to the batch of another collator, as a tensor.

    Attributes:
        collate: the other collator, which does not receive the column.
        column: the name of the column, and of the tensor.
        groups: the names of the groups; their order gives the numbers.
    """

    collate: Callable[[list[Any]], Any]
    column: str
    groups: Sequence[str]

    def __call__(self, examples: list[Any]) -> Any:
        if not any(self.column in example for example in examples):  # data to predict may have no groups
            return self.collate(examples)
        numbers = []
        for example in examples:
            group = _name(example.get(self.column))
            if group not in self.groups:
                raise OptionError(
                    f"each example must have one of the groups {', '.join(self.groups)} in its column {self.column!r}; "
                    f"got {group!r}. Pass all groups as `groups`."
                )
            numbers.append(self.groups.index(group))
        others = [{key: value for key, value in example.items() if key != self.column} for example in examples]
        return {**self.collate(others), self.column: torch.tensor(numbers)}


def group_names(column: str, groups: Iterable[Any] | None, *datasets: Any) -> list[str]:
    """Return the names of the groups: those given, or all values of the column, sorted.

    Raises:
        OptionError: a dataset has no such column, a value that is not given, or cannot be read twice and no names are
            given; there is one group.
    """
    values = set[str]()
    for dataset in datasets:
        for part in dataset.values() if isinstance(dataset, dict) else [dataset]:
            values.update(map(_name, _values(part, column, groups is not None)))
    names = sorted(values) if groups is None else list(dict.fromkeys(map(_name, groups)))
    if len(names) < 2 or not values <= {*names}:
        found = "" if values <= {*names} else f", but a dataset has {', '.join(sorted(values - {*names}))}"
        raise OptionError(
            f"the groups of the column {column!r} must be all of its values, at least two; got "
            f"{', '.join(names) or 'none'}{found}."
        )
    return names


def _name(value: Any) -> str:
    return str(value.item() if hasattr(value, "item") else value)


def _values(dataset: Any, column: str, given: bool) -> Iterable[Any]:
    """Return the values of a column; none if the names of the groups are given and the dataset has no index of them."""
    columns = getattr(dataset, "column_names", None)
    if dataset is not None and columns is not None and column not in columns:
        raise OptionError(
            f"`group_column` must be a column of the dataset, {', '.join(columns)}; got {column!r}. Packing removes "
            "columns: SFTConfig(packing=False)."
        )
    if hasattr(dataset, "unique"):
        values: Iterable[Any] = dataset.unique(column)
        return values
    if dataset is None or given:
        return ()
    if not hasattr(dataset, "__len__"):
        raise OptionError("for a dataset that is a stream the names of all groups must be passed as `groups`.")
    return [_value(dataset[index], column) for index in range(len(dataset))]


def _value(example: Mapping[str, Any], column: str) -> Any:
    if column not in example:
        raise OptionError(f"`group_column` must be a key of each example, such as {list(example)}; got {column!r}.")
    return example[column]


def means_by_group(
    losses: Tensor, mask: Tensor, groups: Tensor | None, names: Sequence[str], column: str
) -> tuple[dict[str, Tensor | None], dict[str, float]]:
    """Return the mean loss of each group's tokens, None without tokens, and their number.

    losses, mask: `[examples, tokens]`; groups: `[examples]`.

    Raises:
        OptionError: the batch has no groups, or not one for each row of tokens.
    """
    if groups is None or len(groups) != len(losses):
        found = "none" if groups is None else f"{len(groups)} for {len(losses)} rows of tokens"
        raise OptionError(
            f"a batch must have one group in {column!r} for each example; got {found}. Collators that join examples "
            "(padding_free, DataCollatorWithFlattening) are not supported."
        )
    groups = groups.to(losses.device)
    zeros = losses.new_zeros(len(names))
    sums = zeros.index_add(0, groups, (losses * mask).sum(1))
    counts = zeros.double().index_add(0, groups, mask.sum(1).double()).tolist()
    means = {
        name: total / count if count else None for name, total, count in zip(names, sums.unbind(), counts, strict=True)
    }
    return means, dict(zip(names, counts, strict=True))


def check_mean(losses: Tensor, mask: Tensor, expected: Tensor, model: str) -> None:
    """Raise OptionError unless the mean of the losses of tokens is the loss of the parent class."""
    mean = ((losses * mask).sum() / mask.sum()).detach()
    if not torch.isclose(mean.double(), expected.detach().double(), rtol=2e-5, atol=1e-6):
        raise OptionError(
            f"the mean of the losses of tokens must be the loss of {model}; got {mean.item():.6g} and "
            f"{expected.item():.6g}. Its loss has other terms, such as that of a router, weights of classes, or labels "
            "in other positions. Switch them off, or override `token_losses`."
        )


def token_losses(outputs: Any, inputs: Mapping[str, Any], model: nn.Module, args: Any) -> tuple[Tensor, Tensor]:
    """See `HomogenizedTrainer.token_losses`."""
    get = outputs.get if isinstance(outputs, Mapping) else partial(getattr, outputs)
    log_probs = get("log_probs", None)
    if log_probs is not None:
        losses = -log_probs * log_probs.exp().detach() if args.loss_type == "dft" else -log_probs
        return losses, get("label_mask", None)
    logits, labels = get("logits", None), inputs.get("labels")
    if logits is not None and labels is not None and labels.dim() > 1 and _is_causal(model):
        logits, labels = logits[:, :-1], labels[:, 1:]
    regression = logits is not None and labels is not None and (logits.shape[-1] < 2 or labels.is_floating_point())
    if logits is None or labels is None or logits.shape[:-1] != labels.shape or regression:
        found = [f"{name} {list(x.shape)}" for name, x in (("logits", logits), ("labels", labels)) if x is not None]
        raise OptionError(
            "`group_column` requires a model with outputs.logits `[examples, tokens, classes]` and a batch with "
            f"integer labels `[examples, tokens]`; got {', '.join(found) or 'neither'}. Override `token_losses`."
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # half precision is too coarse for the sum
    losses = cross_entropy(
        logits.flatten(0, -2), labels.flatten(), reduction="none", ignore_index=IGNORED,
        label_smoothing=args.label_smoothing_factor,
    )  # fmt: skip
    rows = (len(labels), -1)
    return losses.view(rows), (labels != IGNORED).view(rows)


def _is_causal(model: Any) -> bool:
    """True if the model's labels are the next tokens, as the loss of Transformers decides."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    kind = getattr(getattr(base, "loss_function", None), "__name__", "")
    return kind == "ForCausalLMLoss" and not getattr(base.config, "is_encoder_decoder", False)
