"""`HomogenizedDatasets`: homogenize the gradients of several datasets in the trainers of Sentence Transformers."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import OptionError, Pipeline
from gradhomog_adapters.transformers import HomogenizedTrainer

try:
    from datasets import DatasetDict, IterableDatasetDict
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers.base.trainer import BaseTrainer
except ImportError as error:
    raise ImportError(
        "gradhomog_adapters.sentence_transformers requires Sentence Transformers: "
        "pip install 'gradhomog[sentence-transformers]'."
    ) from error

__all__ = ["HomogenizedDatasets", "HomogenizedSentenceTransformerTrainer"]

ROWS = frozenset({"jacobian", "gramian", "norms"})


class HomogenizedDatasets(HomogenizedTrainer, BaseTrainer):  # type: ignore[misc]
    """A base class for trainers of Sentence Transformers in which each dataset of a dict is a task.

    θ.grad = (C J)_k  with J_k = ∂L_k/∂θ, k the dataset of the batch; for `tracked`, θ.grad = 1/N Σ_i (C M)_i with the
    averages M_i of the rows of dataset i

    A batch contains examples of one dataset, so there is one row per step. `tracked(method="upgrad")` keeps an average
    of the rows of each dataset, updates the one of the batch, and applies the method to all of them.

    Inherit from it and from the trainer: `class MyTrainer(HomogenizedDatasets, CrossEncoderTrainer)`. For
    `SentenceTransformerTrainer` this class exists: `HomogenizedSentenceTransformerTrainer`.

    Args:
        train_dataset: a dict of datasets. Its keys are the names of the tasks.
        loss: one loss, or a dict of losses by dataset.
        homogenizers: the pipeline, for example `gradhomog.pipeline("tracked(method='upgrad')")`.

    Conventions:
        1. With the empty pipeline training is that of Sentence Transformers, up to rounding.
        2. A loss that returns several components is one task: their sum.
        3. θ are the parameters of the model; parameters of a loss (a classifier) receive its own gradient.
        4. Evaluation is that of Sentence Transformers.

    `multi_dataset_batch_sampler` determines how many batches each dataset has. In plain training large datasets have
    a large weight therefore; `tracked` gives averages equal weight, even if their numbers of rows differ. Its option
    `forget` is the number of steps after which the average of a dataset without batches is removed.

    Raises:
        OptionError: the `train_dataset` is not a dict; there are several processes, whose batches can belong to
            different datasets in one step; during training: a loss with a gradient cache (`Cached...`), whose own
            backward pass bypasses homogenizers; see also `HomogenizedTrainer`.

    Warns:
        UserWarning: the pipeline reads gradients and does not contain `tracked`: of one row, most methods return
            the row.
        MomentumWarning: set `adam_beta1=0.0`, because `tracked` averages rows already.

    Cost: one backward pass per batch; see `gradhomog show tracked`.

    >>> import gradhomog, tokenizers
    >>> from datasets import Dataset
    >>> from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
    >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    >>> words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "cat": 1, "dog": 2}, unk_token="[UNK]"))
    >>> model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=4)], device="cpu")
    >>> pairs = Dataset.from_dict({"anchor": ["cat", "dog"], "other": ["dog", "cat"], "score": [0.3, 0.8]})
    >>> args = SentenceTransformerTrainingArguments(
    ...     "out", max_steps=2, report_to=[], disable_tqdm=True, save_strategy="no", use_cpu=True, adam_beta1=0.0
    ... )
    >>> trainer = HomogenizedSentenceTransformerTrainer(
    ...     model, args, {"first": pairs, "second": pairs}, homogenizers=gradhomog.pipeline("tracked")
    ... )
    >>> _ = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...
    >>> trainer.homogenizers.steps
    2
    """

    loss_is_scaled_for_ga = None  # as in the trainers of Sentence Transformers, which do not declare it

    def __init__(self, *args: Any, homogenizers: Pipeline, **kwargs: Any) -> None:
        super().__init__(*args, homogenizers=homogenizers, **kwargs)
        if self.accelerator.num_processes > 1:
            raise OptionError(
                "trainers of Sentence Transformers homogenize in one process; got "
                f"{self.accelerator.num_processes}. In one step, each process can have a batch of another dataset, so "
                "that the datasets' weights would differ from those of one process. Start one process, or train "
                "without homogenizers."
            )
        if self.train_dataset is not None and not _is_dict_of_datasets(self.train_dataset):
            raise OptionError(
                "`train_dataset` must be a dict of datasets, one for each task; got one "
                f"{type(self.train_dataset).__name__}. Pass {{'name': dataset, ...}}, or use Sentence Transformers' "
                "own trainer."
            )
        if homogenizers.requirements.choosing:
            return
        if found := [member.selector for member in homogenizers.requirements.acting if member.needs & ROWS]:
            name = found[-1]
            warnings.warn(
                f"a batch has one dataset, so {name} receives one gradient per step, which most methods return "
                f'unchanged. Use gradhomog.pipeline("tracked(method={name!r})").',
                stacklevel=2,
            )

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor | tuple[Tensor, dict[str, Any]]:
        """Return the loss of the dataset of the batch, during training with homogenized gradients."""
        dataset = inputs.get("dataset_name")
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if torch.is_grad_enabled():
            if loss.is_leaf:  # Cached losses return a leaf, with a hook that writes `.grad` of the parameters itself
                raise OptionError(
                    f"the loss of dataset {dataset!r} must be a function of the model's parameters; got a loss without "
                    "a graph. Losses with a gradient cache (`Cached...`) bypass homogenizers: use the loss without "
                    "it, such as MultipleNegativesRankingLoss."
                )
            losses = {name: loss if name == dataset else None for name in self.train_dataset}
            loss = self.homogenized_loss(losses, model)
        return (loss, outputs) if return_outputs else loss

    def should_dataset_name_column_be_added(self, dataset: Any, *args: Any) -> bool:
        """Return True for a dict of datasets, because the name is that of the task, also if all have one loss."""
        return _is_dict_of_datasets(dataset)


class HomogenizedSentenceTransformerTrainer(HomogenizedDatasets, SentenceTransformerTrainer):  # type: ignore[misc]
    """A `SentenceTransformerTrainer` in which each dataset of a dict is a task; see `HomogenizedDatasets`."""


def _is_dict_of_datasets(dataset: Any) -> bool:
    return isinstance(dataset, (DatasetDict, IterableDatasetDict))
