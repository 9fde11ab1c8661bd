"""`HomogenizedDatasets`: homogenize the gradients of datasets and of a loss's components in Sentence Transformers."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
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


class HomogenizedDatasets(HomogenizedTrainer, BaseTrainer):  # type: ignore[misc]
    """A base class for trainers of Sentence Transformers in which datasets, and components of a loss, are tasks.

    θ.grad = Σ_i (C J)_i  with J_i = K_i/K ∂L_i/∂θ, L_i the mean of the loss of task i over the K_i batches that have
    it, of the K batches of a step: those of all processes, and of a window; for `tracked`, θ.grad = m/N Σ_i (C M)_i
    with the averages M_i of the rows ∂L_i/∂θ of N tasks, m the mean number of tasks of a batch

    A batch contains examples of one dataset. If its loss returns one number, the dataset is the task, so that in one
    process a batch has one row. With `window=True` a step has the rows of its `gradient_accumulation_steps` batches, of
    several datasets. Without, `tracked(method="upgrad")` keeps an average of the rows of each dataset, updates the one
    of the batch, and applies the method to all of them. If the loss returns a dict of components, each is a task; they
    have rows in the same step, and any method applies.

    Inherit from it and from the trainer: `class MyTrainer(HomogenizedDatasets, CrossEncoderTrainer)`. For
    `SentenceTransformerTrainer` this class exists: `HomogenizedSentenceTransformerTrainer`.

    Args:
        train_dataset: a dict of datasets; or one dataset, whose loss returns components. Names of the tasks: the
            datasets, for a loss with components `dataset/component`, with one dataset the components.
        loss: one loss, or a dict of losses by dataset.
        homogenizers: the pipeline, for example `gradhomog.pipeline("tracked(method='upgrad')")`.

    Conventions:
        1. With the empty pipeline training is that of Sentence Transformers, up to rounding, also in several processes.
        2. θ are the parameters of the model; parameters of a loss (a classifier) receive its own gradient. In several
           processes it is averaged; in Sentence Transformers 6.2 it is not, so that each process has other parameters.
        3. Evaluation is that of Sentence Transformers.
        4. Batches of several processes, and of a window, can have other datasets. Plain training averages over all K
           batches, and so gives dataset i the factor K_i/K in a step. Here its row has this factor; its loss, which
           homogenizers read and which is logged, has not. Of two batches of different datasets, both rows are halved.
           `tracked` averages rows without the factor, because it gives the datasets equal weight.
        5. Rows are gathered by all processes if a homogenizer reads them, as `tracked` does.

    `multi_dataset_batch_sampler` determines how many batches each dataset has. In plain training large datasets have
    a large weight therefore; `tracked` gives averages equal weight, even if their numbers of rows differ. Its option
    `forget` is the number of steps after which the average of a dataset without batches is removed.

    Raises:
        OptionError: a loss has a gradient cache (`Cached...`), whose own backward pass bypasses homogenizers; in
            several processes with several datasets, a loss has parameters of its own, whose gradients the others would
            wait for, or `tracked` chooses fewer tasks than there are batches in a step; `group_column` is given;
            `window` with `tracked`; during training, the `train_dataset` is not a dict and its loss returns one number;
            see also `HomogenizedTrainer`.

    Warns:
        OneTaskWarning: the pipeline had no effect in ten steps, because each had one task.
        MomentumWarning: set `adam_beta1=0.0`, because `tracked` averages rows already.

    Cost: one backward pass per batch, with components one per component; see `gradhomog show tracked`. In several
    processes also a message with the names of the tasks, and the exchange of the rows of `gradhomog.Ranks("batch")`.

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
        if kwargs.get("group_column") is not None:
            raise OptionError(
                "trainers of Sentence Transformers do not support `group_column`: a batch has examples of one dataset."
            )
        super().__init__(*args, homogenizers=homogenizers, **kwargs)
        several = _is_dict_of_datasets(self.train_dataset)
        self._datasets: list[str | None] = list(self.train_dataset) if several else [None]
        self._tasks: dict[str | None, dict[str, None]] = {}  # known tasks of each dataset
        self._components: dict[str, Tensor] = {}
        self._batches_of_window: list[str | None] = []  # the dataset of each, of all processes
        if self.window and homogenizers.requirements.choosing:
            raise OptionError(
                f"`window` must be False for {homogenizers}, which chooses among the tasks of a batch. Omit one of "
                "them: with a window, methods receive the rows of several datasets in each step."
            )
        losses = self.loss if isinstance(self.loss, dict) else {"all datasets": self.loss}
        for name, loss in losses.items():
            if any(getattr(module, "uses_gradient_cache", False) for module in loss.modules()):
                raise OptionError(
                    f"the loss of {name} must be a function of the model's parameters; {type(loss).__name__} uses a "
                    "gradient cache, which bypasses homogenizers. Use the loss without it, such as "
                    "MultipleNegativesRankingLoss instead of CachedMultipleNegativesRankingLoss."
                )
        if self._ranks is not None and len(self._datasets) > 1:
            self._check_several_processes(losses, self._ranks.size)

    def _check_several_processes(self, losses: Mapping[str, nn.Module], size: int) -> None:
        """Raise unless processes can take a step together whose batches belong to different datasets."""
        of_model = set(self.model.parameters())
        for name, loss in losses.items():
            if any(one.requires_grad for one in set(loss.parameters()) - of_model):
                raise OptionError(
                    f"in several processes, losses of several datasets must have no parameters of their own; the loss "
                    f"of {name}, {type(loss).__name__}, has some, whose gradients only processes with its batches "
                    "compute. Start one process, or put the layer into the model."
                )
        batches = min(size, len(self._datasets))
        if len(self.homogenizers.choose([str(name) for name in self._datasets])) < batches:
            name = self.homogenizers.requirements.choosing[0].selector
            raise OptionError(
                f"in {size} processes a step has batches of up to {batches} datasets, of which {self.homogenizers} "
                f"would use fewer. Use {name}(method=..., rows='all')."
            )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of an optimizer step; their datasets give the share of each in a window."""
        samples, items = super().get_batch_samples(*args, **kwargs)
        if self.window:
            datasets = [inputs.get("dataset_name") for inputs in samples]
            self._batches_of_window = [dataset for each in self._of_all_processes(datasets) for dataset in each]
        return samples, items

    def _of_all_processes(self, value: Any) -> list[Any]:
        """Return the value of each process."""
        values = [value] * (1 if self._ranks is None else self._ranks.size)
        if self._ranks is not None:
            dist.all_gather_object(values, value, group=self._ranks.group)
        return values

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor | tuple[Tensor, dict[str, Any]]:
        """Return the loss of the batch, during training with homogenized gradients of its components."""
        dataset, self._components = inputs.get("dataset_name"), {}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if torch.is_grad_enabled():
            loss = self._homogenized_batch(loss, dataset, model)
        return (loss, outputs) if return_outputs else loss

    def track_loss_components(self, loss: dict[str, Tensor]) -> None:
        """Log the components of a loss, as Sentence Transformers does, and keep them for `compute_loss`.

        Without the logs in training in several processes with several datasets, for which Sentence Transformers 6.2
        would wait: it gathers each component from all processes. They are logged as losses of tasks.
        """
        if self._ranks is None or len(self._datasets) == 1 or not self.model.training:
            super().track_loss_components(loss)
        self._components = dict(loss)

    def _homogenized_batch(self, loss: Tensor, dataset: str | None, model: nn.Module) -> Tensor:
        if dataset is None and not self._components:
            raise OptionError(
                "`train_dataset` must be a dict of datasets, one for each task, or the loss must return a dict of "
                f"components; got one {type(self.train_dataset).__name__} and one number. Pass {{'name': dataset, ...}}"
                ", or use Sentence Transformers' own trainer."
            )
        prefix = f"{dataset}/" if len(self._datasets) > 1 else ""
        own = {f"{prefix}{name}": value for name, value in self._components.items()} or {str(dataset): loss}
        batches = self._of_all_processes((dataset, [*own]))
        losses = self._absent_tasks(batches)
        group = None if self._ranks is None else replace(self._ranks, gather=True)
        if self.homogenizers.requirements.choosing:
            counts = Counter(task for _, tasks in batches for task in tasks)
            # Processes must choose among the same tasks: those without a task have a loss of zero.
            zero = 0 * next(one for one in model.parameters() if one.requires_grad).sum()
            losses |= {name: len(batches) / count * own.get(name, zero) for name, count in counts.items()}
            total = self.homogenized_loss(losses, model, group=group)
            # The direction was multiplied by the number of tasks of all batches.
            total = counts.total() / (len(batches) * len(counts)) * total
        else:
            of_step = self._batches_of_window if self.window else [other for other, _ in batches]
            share = of_step.count(dataset) / len(of_step)
            losses |= {name: share * value + (1 - share) * value.detach() for name, value in own.items()}
            total = self.homogenized_loss(losses, model, group=group)
        return total + (loss - total).detach()

    def _absent_tasks(self, batches: Sequence[tuple[str | None, list[str]]]) -> dict[str, Tensor | None]:
        """Return None for all known tasks, in the same order in all processes.

        `batches`: the dataset and the tasks of the batch of each process.
        """
        for dataset, tasks in batches:
            self._tasks[dataset] = dict.fromkeys((*self._tasks.get(dataset, ()), *tasks))
        # A dataset without a batch so far is a task, unless these batches show that losses have components.
        unknown = all(tasks == [dataset] for dataset, tasks in batches)
        names = [self._tasks.get(each, [str(each)] if unknown else []) for each in self._datasets]
        return dict.fromkeys(itertools.chain.from_iterable(names))

    def should_dataset_name_column_be_added(self, dataset: Any, *args: Any) -> bool:
        """Return True for a dict of datasets, because the name is that of the task, also if all have one loss."""
        return _is_dict_of_datasets(dataset)


class HomogenizedSentenceTransformerTrainer(HomogenizedDatasets, SentenceTransformerTrainer):  # type: ignore[misc]
    """A `SentenceTransformerTrainer` in which datasets, and components of a loss, are tasks: `HomogenizedDatasets`."""


def _is_dict_of_datasets(dataset: Any) -> bool:
    return isinstance(dataset, (DatasetDict, IterableDatasetDict))
