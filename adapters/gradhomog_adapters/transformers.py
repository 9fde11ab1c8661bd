"""`HomogenizedTrainer`: homogenize the gradients of several losses in the Trainer of Hugging Face Transformers."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradhomog
from gradhomog import OptionError, Pipeline, Ranks, StepReport, check_optimizer
from gradhomog_adapters._frameworks import ReceivesReports, RunningMeans, ZeroLosses, check_pipeline, count_examples
from gradhomog_adapters._groups import CollatesGroups, check_mean, group_names, means_by_group, token_losses

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DistributedType
    from transformers import Trainer
    from transformers.trainer_pt_utils import find_batch_size
    from transformers.trainer_utils import EvalLoopOutput
except ImportError as error:
    raise ImportError(
        "gradhomog_adapters.transformers requires Transformers and Accelerate: pip install 'gradhomog[transformers]'."
    ) from error

__all__ = ["HomogenizedTrainer"]

STATE_FILE = "homogenizers.pt"
"""The file in a checkpoint that contains the state of the pipeline."""

UNSUPPORTED = (DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM)
"""Backends that split parameters, gradients or the state of the optimizer, or run the backward pass themselves.

They do so in one process too.
"""


class HomogenizedTrainer(ReceivesReports, Trainer):  # type: ignore[misc]
    """A Trainer whose `compute_loss` returns one scalar with homogenized gradients, from several losses.

    value Σ_i L_i,  gradient θ.grad = Σ_i (C J)_i  with J_i = ∂L_i/∂θ, task i; both divided by the number of batches
    of an optimizer step (`gradient_accumulation_steps`)

    Subclass it instead of `Trainer`, and return `self.homogenized_loss(losses, model)` from `compute_loss`. With
    another subclass of `Trainer`, inherit from both: `class MyTrainer(HomogenizedTrainer, OtherTrainer)`. Clipping,
    schedulers, mixed precision, evaluation and callbacks remain those of Transformers.

    Without a subclass, `group_column="source"` makes each data set of a mixed batch a task, from one forward pass:

    L_i = Σ_t ℓ_t / n_i over the n_i tokens t of the examples of group i,  θ.grad = 1/N Σ_i (C J)_i

    Args:
        homogenizers: the pipeline. Homogenizers that read features or residuals are not supported.
        window: homogenize once per optimizer step: the rows of its batches are averaged first (added up, if
            `loss_is_scaled_for_ga`), so that training is that of one large batch, up to rounding. By default each batch
            is homogenized separately, which is the plain sum if each has one task, as in batches of one example.
        group_column: the name of the column with the group of each example: a text, a number or another value, which is
            converted to a text. The model receives neither the column nor its name. See `token_losses` for the models.
        groups: the names of all groups, in the order of the tasks. By default all values of the column in
            `train_dataset` and `eval_dataset`, sorted; required for a dataset that is a stream.
        *args, **kwargs: arguments of `Trainer`. `compute_loss_func` is not supported, because `compute_loss` is
            overridden.

    Attributes:
        homogenizers: the pipeline.
        report: the result of the last step, without the direction, which would occupy the memory of a gradient; None
            before the first.
        groups: the names of the groups.
        loss_is_scaled_for_ga: False: your losses are means over a batch, and the Trainer divides them by the number of
            accumulated batches. Set it to True in a subclass that divides sums over tokens by `num_items_in_batch`.
            That is the number of tokens of all processes, whose gradients are averaged, so multiply the losses by the
            number of processes, as the `compute_loss` of Transformers does. Transformers' default, None, omits the
            division of the Trainer if the batch contains `labels` and the model's `forward` has `**kwargs`. Beside
            another trainer it is the first value that a class declares, in the order of inheritance, such as None of
            TRL's `SFTTrainer`, True of `GRPOTrainer`.

    Logs: in each log of the training loss, the means since the last log of `StepReport.scalars()`: `loss/A`, `weight/A`
    (the factor of a task's gradient; none for methods that replace rows) and, if a homogenizer reads inner products,
    `norm/A`, `cosine/A-B` and `cosine/min`. In the metrics of an evaluation `eval_A_loss`, which may be the
    `metric_for_best_model`: Transformers minimizes it, because the name ends with "loss".

    Checkpoints: the state of the pipeline is the file `homogenizers.pt` beside the state of the optimizer, so that
    `train(resume_from_checkpoint=...)` continues exactly. A new model from `model_init` starts with the state that
    the pipeline had when the trainer was created.

    Conventions:
        1. The sum of the losses is the usual loss of several heads, so the mean of the homogenized rows is multiplied
           by their number: the empty pipeline computes the gradient of the sum, up to rounding, with the same rates
           and weight decay.
        2. θ are all trainable parameters of the model; override `shared_parameters` to change that.
        3. The names of the losses are the domains of the rows. A loss None (no labels in the batch) is absent.
        4. Without `window` each batch is one step of the homogenizers, also if several are accumulated: they homogenize
           each batch separately, and gradients are added. With it, a task that is absent from some batches has the
           mean over the others; `examples` of `homogenized_loss` weighs them.
        5. Within `torch.no_grad`, as in evaluation, the result is the sum; no state changes.
        6. In several processes (DDP) the rows are those of the batches of all of them, which have equal weight, as in
           DDP: the empty pipeline trains as DDP does, others as one process with the whole batch. All processes have
           the same gradients, states and logs. DDP gives the missing loss of a process (None) the gradient zero; here
           the mean is over the processes that have a loss.
        7. In one process, a batch in which all losses are None has the loss zero, and takes no step.
        8. Groups: the direction is the mean of the rows, because the loss of a mixed batch is a mean. If all groups of
           all batches have equally many tokens, the empty pipeline trains as the parent class does. The value of the
           loss is that of the parent class for each batch by itself; the parent class is called once and computes its
           metrics, such as those of TRL's `SFTTrainer`. Numbers of tokens weigh batches, processes, logs and
           evaluations. Data without the column are evaluated as by the parent class.

    Raises:
        OptionError: the pipeline reads features or residuals; `compute_loss` is not overridden without `group_column`,
            or has returned a loss that was not homogenized; the column or a group is not known, or the model has no
            losses of tokens (see `token_losses`); `compute_loss_func` was given; parameters are distributed (FSDP,
            tensor parallelism), or DeepSpeed runs the backward pass; batches are accumulated beside another trainer,
            and no class declares `loss_is_scaled_for_ga`; see also `gradhomog.loss`, `gradhomog.check_optimizer`.
        RankError: during training, another process raised an error, or has other tasks, parameters or states.
        NonfiniteError: during training, a loss or its gradient is not finite; the message names the task.

    Warns:
        UserWarning: a checkpoint without the state of homogenizers was resumed.
        MomentumWarning: see `gradhomog.check_optimizer`.

    Cost: see `gradhomog.backward`; one backward pass per task, or one in total if the pipeline reads losses only;
    `window` one per task and batch, and the memory of one gradient per task. In several processes the exchange of
    `gradhomog.Ranks("batch")`, and DDP's own.

    >>> import gradhomog
    >>> from transformers import TrainingArguments
    >>> class Regression(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(3, 2)
    ...     def forward(self, x, labels):
    ...         return {"loss_by_output": (self.layer(x) - labels).square().mean(0)}
    >>> class TwoOutputs(HomogenizedTrainer):
    ...     def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    ...         outputs = model(**inputs)
    ...         loss = self.homogenized_loss(dict(zip(["a", "b"], outputs["loss_by_output"])), model)
    ...         return (loss, outputs) if return_outputs else loss
    >>> args = TrainingArguments("out", max_steps=2, report_to=[], disable_tqdm=True, save_strategy="no", use_cpu=True)
    >>> data = [{"x": torch.rand(3), "labels": torch.rand(2)} for _ in range(4)]
    >>> trainer = TwoOutputs(Regression(), args, train_dataset=data, homogenizers=gradhomog.pipeline("upgrad"))
    >>> _ = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...
    >>> trainer.report.cosines.shape
    torch.Size([2, 2])

    Two data sets in each batch of a language model, homogenized over two batches of two examples:

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> sizes = {"vocab_size": 9, "hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4}
    >>> model = BertForMaskedLM(BertConfig(**sizes, num_hidden_layers=1))
    >>> data = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3], "source": name} for name in ["wiki", "code"] * 4]
    >>> args.per_device_train_batch_size, args.gradient_accumulation_steps = 2, 2
    >>> trainer = HomogenizedTrainer(
    ...     model, args, train_dataset=data, group_column="source", window=True,
    ...     homogenizers=gradhomog.pipeline("upgrad"),
    ... )
    >>> _ = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...
    >>> trainer.report.names
    ('code', 'wiki')
    """

    loss_is_scaled_for_ga: bool | None = False
    data_collator: Any

    def __init__(
        self, *args: Any, homogenizers: Pipeline, window: bool = False, group_column: str | None = None,
        groups: Sequence[Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        check_pipeline(homogenizers, "a Trainer")
        if type(self).compute_loss is HomogenizedTrainer.compute_loss and group_column is None:
            raise OptionError(
                "a HomogenizedTrainer must override `compute_loss` and return self.homogenized_loss(losses, model), or "
                f"receive `group_column`; {type(self).__name__} does not, so one loss of the model would be trained."
            )
        self.homogenizers, self.window, self.group_column = homogenizers, window, group_column
        self._initial_state = homogenizers.state_dict()
        self._training_means, self._evaluation_means = RunningMeans(), RunningMeans()
        self._evaluated_examples = 1
        self._scaled: bool | None = False  # the losses of the present batch
        self._zero_losses = ZeroLosses()
        self._accumulated: Any = None  # with `window`, the batches of the present step
        self._examples: dict[str, float] = {}
        self._counted: bool | None = None  # the batches of the present step have numbers of examples
        self._groups_of_batch: Tensor | None = None
        self._checked_losses = False
        super().__init__(*args, **kwargs)
        declared = partial(_declared_scaling, type(self), self.args.gradient_accumulation_steps)
        self.loss_is_scaled_for_ga = declared() if group_column is None else False
        if self.compute_loss_func is not None:
            raise OptionError(
                "`compute_loss_func` must be None for a HomogenizedTrainer, because `compute_loss` computes the "
                f"losses; got {self.compute_loss_func!r}. Call it in `compute_loss`."
            )
        self._ranks = ranks_of_accelerator(self.accelerator, self.get_tp_size())
        if group_column is not None:
            self.groups = group_names(group_column, groups, self.train_dataset, self.eval_dataset)
            self.data_collator = CollatesGroups(self.data_collator, group_column, self.groups)

    def homogenized_loss(
        self, losses: Mapping[str, Tensor | None], model: nn.Module, group: Ranks | None = None,
        examples: Mapping[str, float | Tensor] | None = None, **options: Any,
    ) -> Tensor:  # fmt: skip
        """Return the sum of the losses, during training with homogenized gradients.

        Args:
            losses: one scalar per task, by name; None for a task without labels in this batch.
            model: the model that `compute_loss` received.
            group: how the rows are distributed over several processes, by default `gradhomog.Ranks("batch")`.
            examples: for losses that are means over a part of the batch, such as the examples with labels or those of a
                group: the size of this part by task. They weigh the batches of a window, the rows of several processes,
                and the batches in the means of logs and evaluations. A task with 0 examples is absent. By default all
                batches weigh equally, and in an evaluation by their size.
            options: other keyword arguments of `gradhomog.loss`, such as `per`, `heads`, `inspect`; with `window` those
                of `gradhomog.accumulated`, and those of the first batch.
        """
        training = torch.is_grad_enabled()
        if training and self.homogenizers.steps == 0:
            optimizer = self.optimizer.optimizer if isinstance(self.optimizer, AcceleratedOptimizer) else self.optimizer
            check_optimizer(optimizer, self.homogenizers)
        losses, group = count_examples(losses, examples, group, self._ranks)
        for name, loss in losses.items():
            if loss is not None and not training:
                self._evaluation_means.add(f"{name}_loss", loss, (examples or {}).get(name, self._evaluated_examples))
        if training:
            self._count(examples)
        if all(loss is None for loss in losses.values()) and not (training and (self.window or self._ranks)):
            self._homogenized = True
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            return torch.stack([0 * parameter.sum() for parameter in trained]).sum()
        options = {"parameters": self.shared_parameters(model), "reduction": "sum", **options}
        if self.window and training:
            options["loss"] = self._loss_in_window
        total = self._zero_losses.total(
            losses, model, self.homogenizers, self._ranks, report=self._receive, group=group, **options
        )
        if training:
            total.register_hook(self._note_backward)  # type: ignore[no-untyped-call]
        return total

    def _count(self, examples: Mapping[str, float | Tensor] | None) -> None:
        """Add up the numbers of examples until they are logged.

        Raises:
            OptionError: some batches of a window have numbers, others have none.
        """
        if self.window and self._counted not in (None, examples is not None):
            raise OptionError("pass `examples` of self.homogenized_loss for all batches of a window or for none.")
        self._counted = examples is not None
        for name, number in (examples or {}).items():
            self._examples[name] = self._examples.get(name, 0.0) + float(number)

    def _loss_in_window(
        self, losses: Any, pipe: Pipeline, *, group: Ranks | None, report: Callable[[StepReport], None], **options: Any
    ) -> Tensor:
        """Return the loss of a batch whose rows are homogenized with those of the others of an optimizer step."""
        numbers = 1.0 if group is None or group.examples is None else group.examples
        if self._accumulated is None:
            ranks = None if group is None else replace(group, examples=None)
            self._accumulated = gradhomog.accumulated(pipe, group=ranks, **options)
        last = self.accelerator.sync_gradients
        # Losses that are divided over all accumulated batches are parts of a sum.
        loss: Tensor = self._accumulated.loss(
            losses, last=last, examples=None if self._scaled else numbers, report=report
        )
        return loss

    def _note_backward(self, _: Tensor) -> None:
        self._homogenized = True

    def _receive(self, result: StepReport) -> None:
        super()._receive(result)
        # Losses that are divided over all accumulated batches are logged as those of one batch.
        batches = self.current_gradient_accumulation_steps if self._scaled and not self.window else 1
        for name, value in result.scalars().items():
            kind, _, task = name.partition("/")
            factor, weight = (batches, self._examples.get(task, 1.0)) if kind == "loss" else (1, 1.0)
            self._training_means.add(name, factor * value, weight)
        self._examples = {}

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of an optimizer step, and begin a window, also after a training that was interrupted."""
        self._accumulated, self._examples, self._counted = None, {}, None
        return super().get_batch_samples(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Train on one batch, and raise if the backward pass of its loss does not reach the homogenizers."""
        self._homogenized = False
        self._scaled = self.loss_is_scaled_for_ga
        if self._scaled is None:  # the rule of Transformers
            self._scaled = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if not self._homogenized:
            raise OptionError(
                "`compute_loss` of a HomogenizedTrainer must return self.homogenized_loss(losses, model), alone or as "
                f"a term of a sum; the loss that {type(self).__name__} returned for this batch does not contain it, so "
                "its gradient is not homogenized. For training without homogenizers use "
                "homogenizers=gradhomog.pipeline('none')."
            )
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of the parent class, with `group_column` with the homogenized gradients of the groups."""
        if self.group_column is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        groups = inputs.pop(self.group_column, self._groups_of_batch)
        given, outputs = dict(inputs), list[Any]()
        with model.register_forward_hook(lambda module, args, output: outputs.append(output)):
            result = super().compute_loss(model, inputs, return_outputs)
        plain = result[0] if return_outputs else result
        if groups is None and not torch.is_grad_enabled():  # an evaluation of other data
            return result
        losses, mask = self.token_losses(outputs[0], given)
        means, counts = means_by_group(losses, mask, groups, self.groups, self.group_column)
        if not self._checked_losses and any(counts.values()):
            check_mean(losses, mask, plain, type(self.model).__name__)
            self._checked_losses = True
        gather = None if self._ranks is None else replace(self._ranks, gather=True)
        total = self.homogenized_loss(means, model, gather, counts, reduction="mean")
        if any(counts.values()):  # the value of the parent class, so that logs are comparable; NaN without labels
            total = plain.detach() + (total - total.detach()) if torch.is_grad_enabled() else plain
        return (total, result[1]) if return_outputs else total

    def token_losses(self, outputs: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the loss of each token, and True where it counts, `[examples, tokens]` each, for `group_column`.

        Here: cross entropies of `outputs.logits` and `labels`, also smoothed ones (`label_smoothing_factor`), shifted
        by one token for causal models; or the `log_probs` of TRL's `SFTTrainer`. Override it for another loss.

        Their mean must be the loss of the parent class, which is checked in the first batch.

        Raises:
            OptionError: the model returns neither, or they have not the shape of the labels.
        """
        return token_losses(outputs, inputs, self.accelerator.unwrap_model(self.model), self.args)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if self.group_column is not None and self.group_column not in self._signature_columns:
            self._signature_columns.append(self.group_column)

    def shared_parameters(self, model: nn.Module) -> Any:
        """Return the parameters whose gradients are homogenized: all of the model.

        Override it to return the encoder, for example `self.model.encoder`: heads then receive the unweighted gradient
        of their task's loss.
        """
        # Names without "module.", so that a state by name is also that of one process.
        return model.module if isinstance(model, DistributedDataParallel) else model

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and add the means of the steps' scalars to a log of the training loss.

        A log of the training loss (`"loss"`) must be called by all processes, as the Trainer does.
        """
        super().log({**logs, **self._training_means.pop(self._ranks)} if "loss" in logs else logs, start_time)

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch; the means of the losses weigh batches by their size, as `eval_loss` does."""
        self._evaluated_examples = len(inputs) if isinstance(inputs, list) else find_batch_size(inputs) or 1
        if self.group_column is not None:
            self._groups_of_batch = inputs.pop(self.group_column, None)
        output = super().prediction_step(model, inputs, *args, **kwargs)
        self._groups_of_batch = None  # not those of a later batch without the column
        return output

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """Evaluate, and add the mean loss of each task to the metrics."""
        self._evaluation_means.pop()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        means = self._evaluation_means.pop(self._ranks)
        output.metrics.update({f"{metric_key_prefix}_{name}": mean for name, mean in means.items()})
        return output

    def call_model_init(self, trial: Any = None) -> Any:
        """Return a new model, and give the pipeline its initial state, because its rows belong to the earlier one."""
        self.homogenizers.load_state_dict(self._initial_state)
        return super().call_model_init(trial)

    # Methods of Trainer, not callbacks: callbacks do not receive the folder from which a run is resumed.

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            torch.save(self.homogenizers.state_dict(), Path(output_dir, STATE_FILE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint, STATE_FILE)
        if path.is_file():
            self.homogenizers.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        else:
            warnings.warn(
                f"{checkpoint} contains no {STATE_FILE}: training continues with the present state of the "
                "homogenizers. Save checkpoints by a HomogenizedTrainer with save_only_model=False.",
                stacklevel=2,
            )


def _declared_scaling(kind: type, accumulated: int) -> bool | None:
    """Return `loss_is_scaled_for_ga` of the first class that declares it; False without another trainer.

    Raises:
        OptionError: another trainer computes the losses, batches are accumulated, and no class declares it.
    """
    others = [base for base in kind.__mro__ if base not in (HomogenizedTrainer, Trainer)]
    declared = [vars(base)["loss_is_scaled_for_ga"] for base in others if "loss_is_scaled_for_ga" in vars(base)]
    siblings = [base for base in others if issubclass(base, Trainer) and not issubclass(base, HomogenizedTrainer)]
    if siblings and not declared and accumulated > 1:
        raise OptionError(
            f"with gradient_accumulation_steps={accumulated}, `loss_is_scaled_for_ga` must be declared by "
            f"{kind.__name__}, because {siblings[0].__name__} does not declare it: False if the losses are means over "
            "a batch, True if they are divided by the number of items of all accumulated batches, None for the rule "
            "of Transformers, if they are those of the model."
        )
    return declared[0] if declared else False


def ranks_of_accelerator(accelerator: Any, tensor_parallel: int = 1) -> Ranks | None:
    """Return how an accelerator distributes batches; None for one process.

    Raises:
        OptionError: it does not only distribute batches.
    """
    parallelism = accelerator.parallelism_config
    found = [] if parallelism is None else [name for name in parallelism.active_mesh_dims if name != "dp_replicate"]
    if tensor_parallel > 1:
        found.append("tensor parallelism")
    one, backend = accelerator.num_processes == 1, accelerator.distributed_type
    if backend in UNSUPPORTED or (backend == DistributedType.XLA and not one):
        found.append(backend.value)
    if found:
        raise OptionError(
            "a HomogenizedTrainer requires that each process has a replica of the model, alone or in "
            f"DistributedDataParallel; got {', '.join(found)} (processes: {accelerator.num_processes}). Use DDP, or "
            "fully_shard (FSDP2) in your own loop; or Transformers' Trainer with weights from losses (static, uw, "
            "famo), which need one backward pass: docs/guide/ranks.md#weights-from-losses."
        )
    return None if one else Ranks("batch")
