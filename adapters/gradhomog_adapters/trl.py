"""`HomogenizedGRPOTrainer`, `HomogenizedDPOTrainer`: homogenize the gradients of rewards or of losses in TRL."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradhomog import OptionError, Pipeline
from gradhomog_adapters.transformers import HomogenizedTrainer

try:
    from trl import DPOTrainer, GRPOTrainer
    from trl.trainer.utils import nanstd
except ImportError as error:
    raise ImportError("gradhomog_adapters.trl requires TRL: pip install 'gradhomog[trl]'.") from error

__all__ = ["HomogenizedDPOTrainer", "HomogenizedGRPOTrainer"]

EPSILON = 1e-4
"""The number that TRL adds to a standard deviation of rewards."""

REGULARIZERS = {"kl": "beta", "entropy": "entropy_coef", "router": "router_aux_loss_coef"}
"""The names of the tasks that are no rewards, and the attributes of `GRPOTrainer` that are their coefficients."""


class HomogenizedGRPOTrainer(HomogenizedTrainer, GRPOTrainer):  # type: ignore[misc]
    """A `GRPOTrainer` in which each reward function is a task.

    value L,  gradient θ.grad = Σ_k (C J)_k  with J_k = ∂/∂θ Σ_i a_ik ∂L/∂A_i, reward k;  Σ_k a_ik = A_i, the advantage
    of completion i in TRL's loss L

    a_ik = w_k (r_ik - mean r_k) / s, with rewards r and weights w (`reward_weights`); s is the same for all rewards:

    - `scale_rewards="none"`: s = 1; the mean is that of the completions of a prompt.
    - `"group"`, TRL's default, and `"batch"`: s = std(Σ_k w_k r_k) + 1e-4 of the completions of a prompt or of all.
      It is one divisor, so a reward that is 20 times as large has a row that is 20 times as large.
    - `multi_objective_aggregation="normalize_then_sum"`: r_ik is replaced by (r_ik - mean r_k) / (std r_k + 1e-4) of
      the completions of a prompt; the mean and s are those of all completions. Rows then have similar norms.

    All rows are from one generation and one forward pass. Generation, the loss, its options, metrics (each recorded
    once), tables of completions, evaluation and checkpoints are those of TRL.

    Tasks: the reward functions, by their names in TRL's logs. A reward is absent in a step if it does not differ
    between completions of any prompt: in the generation batch of all processes or, in one process, in the batch. Then
    the primary task of a homogenizer such as `sago` has a row of zeros instead.

    Regularizers: "kl" with `beta`; "entropy" with `entropy_coef` or `use_adaptive_entropy`; "router" with the auxiliary
    loss of a mixture of experts. Their terms are added to the loss of the homogenized rewards, with their coefficients.
    As tasks (`regularizers="tasks"`) each has a row, the gradient of its term; it is absent if its coefficient is zero.
    At the start the policy is its reference, so that the row of "kl" is nearly zero, and methods that equalize norms
    replace its small coefficient by a large weight: with `beta=0.04` `auto`, `imtl_g` and `mgda` stopped learning where
    TRL learned. With tasks choose a method that keeps lengths, such as `upgrad`.

    Args:
        regularizers: "plain" or "tasks", see above.
        homogenizers: the pipeline. Homogenizers that require positive losses (`uw`, `famo`, `dwa`, `gradnorm`) raise
            an error at a negative loss: the value of a policy loss is no measure of its reward.
        *args, **kwargs: arguments of `GRPOTrainer`, and `window` of `HomogenizedTrainer`.

    Conventions:
        1. The empty pipeline trains as `GRPOTrainer` does, up to rounding, with all options.
        2. TRL's losses are linear in an advantage of given sign: L = Σ_i A_i φ_i(sign A_i) + the other terms. Clipping,
           masks and temperatures are decided by A_i for all rows: J_k = Σ_i a_ik ∂φ_i/∂θ. (Where rewards cancel,
           A_i = 0, half of what is clipped for one sign remains.) Clipped by a_ik instead, the rows would not add up to
           the gradient of L: for rewards of opposite sign, with 15 % of the tokens clipped, they differed by a quarter
           of its norm. Without clipped tokens (`num_iterations=1`) there is no difference, and with
           `scale_rewards="none"` row k is the gradient of `GRPOTrainer` with the weight of reward k alone.
        3. A missing reward (None) is 0 in TRL's sum, and so in a_ik; with "normalize_then_sum" its normalized value is
           0, that of the mean. A completion without any reward has a_ik = 0.
        4. In evaluations there is TRL's loss, and no loss by task: the means of rewards are its metrics.
        5. Otherwise see `HomogenizedTrainer`: parameters, logs, checkpoints, several processes.

    Raises:
        OptionError: there is one task only, or two with the same name; `group_column` was given; a subclass changes
            rewards or advantages, or adds terms to the loss, so that the terms of rewards do not add up to TRL's; see
            also `HomogenizedTrainer`.

    Cost: one backward pass per task and batch, and one for plain regularizers; none for a task that is absent. Two
    rewards, 16 completions of 64 tokens and 4 million parameters on one core: 1.3 times a step of `GRPOTrainer`.

    Source: TRL 1.16, `GRPOTrainer._generate_and_score_completions` and `_compute_loss`; "normalize_then_sum" is GDPO,
    arXiv:2601.05242.

    >>> import datasets, tokenizers, transformers, trl
    >>> words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"_": 0, "a": 1, "b": 2, "c": 3}, unk_token="_"))
    >>> words = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="_", eos_token="_")
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    ... )
    >>> def says_b(completions, **_):
    ...     return [text.count("b") for text in completions]
    >>> def is_short(completions, **_):
    ...     return [-len(text) for text in completions]
    >>> args = trl.GRPOConfig(
    ...     "out", max_steps=2, max_completion_length=4, report_to=[], disable_tqdm=True, save_strategy="no",
    ...     use_cpu=True, bf16=False,
    ... )
    >>> trainer = HomogenizedGRPOTrainer(
    ...     transformers.LlamaForCausalLM(config), [says_b, is_short], args, processing_class=words,
    ...     train_dataset=datasets.Dataset.from_dict({"prompt": ["a", "c"]}),
    ...     homogenizers=gradhomog.pipeline("upgrad"),
    ... )
    >>> _ = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...
    >>> trainer.report.names
    ('says_b', 'is_short')
    """

    def __init__(
        self, *args: Any, homogenizers: Pipeline, regularizers: Literal["plain", "tasks"] = "plain", **kwargs: Any
    ) -> None:
        _check_no_groups(self, kwargs)
        if regularizers not in ("plain", "tasks"):
            raise OptionError(f"`regularizers` must be 'plain' or 'tasks'; got {regularizers!r}.")
        super().__init__(*args, homogenizers=homogenizers, **kwargs)
        enabled = {"kl": self.beta != 0, "entropy": self._entropy_bonus_enabled, "router": self.aux_loss_enabled}
        self._regularizers = [name for name in REGULARIZERS if enabled[name]]
        self._regularizing_tasks = self._regularizers if regularizers == "tasks" else []
        advice = "Set `__name__` of reward functions; regularizers='tasks' adds the KL divergence and the entropy."
        _check_tasks([*self.reward_func_names, *self._regularizing_tasks], self, advice)
        self._checked_terms = False
        primary = {vars(homogenizer).get("primary") for homogenizer in homogenizers}  # names or slots
        self._primary = [bool(primary & {slot, name}) for slot, name in enumerate(self.reward_func_names)]

    def _calculate_rewards(self, *args: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*args)  # of the completions of all processes
        self._rewards = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.model.training:
            advantages = output["advantages"]
            start = self.accelerator.process_index * len(advantages)
            of_process = self._advantages_by_reward()[start : start + len(advantages)]
            output["advantages_by_reward"] = of_process.to(advantages)  # TRL shuffles and splits it as the others
        return output

    def _advantages_by_reward(self) -> Tensor:
        """Return a_ik, `[completions, rewards]`; NaN for a reward that is absent in this batch."""
        # In float64 equal rewards differ from their mean by exactly zero; a row of rounding errors might be normalized.
        scores = self._rewards.cpu().double().view(-1, self.num_generations, len(self.reward_funcs))
        unscored = scores.isnan().all(2, keepdim=True)
        normalized = self.multi_objective_aggregation == "normalize_then_sum"
        if normalized:
            scores = (scores - scores.nanmean(1, keepdim=True)) / (nanstd(scores, dim=1, keepdim=True) + EPSILON)
            scores, unscored = scores.flatten(0, 1)[None], unscored.flatten(0, 1)[None]  # all are one group from here
        scores = scores.nan_to_num(0.0).masked_fill(unscored, torch.nan)
        weights = self.reward_weights.to(scores)
        total = (scores * weights).sum(2, keepdim=True)
        divisor = torch.ones((), dtype=total.dtype)
        if normalized or self.scale_rewards == "group":
            divisor = nanstd(total, dim=1, keepdim=True) + EPSILON
        elif self.scale_rewards == "batch":
            divisor = nanstd(total) + EPSILON
        advantages: Tensor = (scores - scores.nanmean(1, keepdim=True)) * weights / divisor
        advantages = advantages.nan_to_num(0.0).flatten(0, 1)
        present = advantages.any(0)
        # Processes take a step together also if no reward differs. Then they have rows of zeros.
        none = ~present.any() & (self._ranks is not None and not self._regularizing_tasks)
        return advantages.masked_fill(~(present | none | torch.tensor(self._primary)), torch.nan)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Return TRL's loss, during training with homogenized gradients."""
        if not torch.is_grad_enabled():
            result: Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return result
        advantages = inputs["advantages"].clone().requires_grad_()
        coefficients = {name: Coefficient(getattr(self, REGULARIZERS[name])) for name in self._regularizers}
        for name, coefficient in coefficients.items():
            setattr(self, REGULARIZERS[name], coefficient)
        loss = super().compute_loss(model, {**inputs, "advantages": advantages}, return_outputs, num_items_in_batch)
        factors = {name: value.factor for name, value in coefficients.items() if value.factor is not None}
        slope, *terms = torch.autograd.grad(loss, [advantages, *factors.values()], create_graph=True)
        by_reward = inputs["advantages_by_reward"]
        self._check_terms(loss, slope, advantages, by_reward, terms)
        absent = by_reward.isnan().any(0)
        if self._ranks is None:
            absent |= ~(by_reward.any(0) | torch.tensor(self._primary, device=absent.device))
        columns = zip(self.reward_func_names, by_reward.unbind(1), absent.tolist(), strict=True)
        losses: dict[str, Tensor | None] = {
            name: None if is_absent else (slope * column).sum() for name, column, is_absent in columns
        }
        regularizing = dict(zip(factors, terms, strict=True))
        if self._regularizing_tasks:
            return self.homogenized_loss(losses | dict.fromkeys(self._regularizers) | regularizing, model)
        return self.homogenized_loss(losses, model) + sum(terms)

    def _check_terms(
        self, loss: Tensor, slope: Tensor, advantages: Tensor, by_reward: Tensor, terms: Sequence[Tensor]
    ) -> None:
        """Raise OptionError unless the advantages are the sums over rewards, and the loss the sum of its terms."""
        total, name = by_reward.nan_to_num(0.0).sum(1), type(self).__name__
        tolerance = 0.05 * advantages.detach().abs().max() + 0.01  # TRL's rounding of nearly equal rewards
        if total.shape != advantages.shape or (total - advantages.detach()).abs().max() > tolerance:
            raise OptionError(
                f"the advantages of {name} must be the sums of those of its rewards, one for each completion. Change "
                "rewards in the reward functions, not after `_calculate_rewards`."
            )
        rest = (loss - (slope * advantages).sum() - sum(terms)).detach().abs()
        if not self._checked_terms and rest > 1e-4 * (1 + loss.detach().abs()):
            raise OptionError(
                f"the loss of {name} must be the sum of the terms of its rewards and of "
                f"{', '.join(self._regularizers) or 'no regularizers'}; it differs by {rest.item():.3g}. Add other "
                "terms to the result of `compute_loss`, not in `_compute_loss`."
            )
        self._checked_terms = True


class HomogenizedDPOTrainer(HomogenizedTrainer, DPOTrainer):  # type: ignore[misc]
    """A `DPOTrainer` in which each of several losses is a task.

    value Σ_k w_k L_k,  gradient θ.grad = Σ_k (C J)_k  with J_k = w_k ∂L_k/∂θ, loss k of `loss_type`, and its weight w_k
    of `loss_weights`. A loss of weight 0 is no task.

    All rows are from one forward pass of the model and of the reference model. Metrics (each recorded once), evaluation
    and checkpoints are those of TRL. Tasks: the entries of `loss_type`; "router" with the auxiliary loss of a mixture
    of experts.

    Args:
        homogenizers: the pipeline.
        *args, **kwargs: arguments of `DPOTrainer`, and `window` of `HomogenizedTrainer`.

    Attributes:
        loss_weights: the weight of each loss, times a unit vector, by which TRL's sum of losses is the vector of its
            terms.

    Logs, checkpoints, several processes: see `HomogenizedTrainer`; an evaluation has `eval_sigmoid_loss`, which
    contains the weight.

    Conventions:
        1. The empty pipeline trains as `DPOTrainer` does, up to rounding, with each `loss_type`.
        2. If a loss is not finite, neither are the other terms, and a `NonfiniteError` names all tasks.

    Raises:
        OptionError: `loss_type` has one entry, or the same twice; `activation_offloading` is True; `group_column` was
            given; see also `HomogenizedTrainer`.

    Cost: one backward pass per loss and batch.

    Source: TRL 1.16, `DPOTrainer._compute_loss`; several losses are those of MPO, arXiv:2411.10442.

    >>> import datasets, tokenizers, transformers, trl
    >>> words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"_": 0, "a": 1, "b": 2, "c": 3}, unk_token="_"))
    >>> words = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="_", eos_token="_")
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    ... )
    >>> args = trl.DPOConfig(
    ...     "out", loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.5], max_steps=2, report_to=[], disable_tqdm=True,
    ...     save_strategy="no", use_cpu=True, bf16=False,
    ... )
    >>> model, reference = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    >>> pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 16
    >>> trainer = HomogenizedDPOTrainer(
    ...     model, reference, args, train_dataset=datasets.Dataset.from_list(pairs), processing_class=words,
    ...     homogenizers=gradhomog.pipeline("upgrad"),
    ... )
    >>> _ = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...
    >>> trainer.report.names
    ('sigmoid', 'sft')
    """

    def __init__(self, *args: Any, homogenizers: Pipeline, **kwargs: Any) -> None:
        _check_no_groups(self, kwargs)
        super().__init__(*args, homogenizers=homogenizers, **kwargs)
        if self.args.activation_offloading:
            raise OptionError(
                "`activation_offloading` must be False for a HomogenizedDPOTrainer, because TRL discards activations "
                "after one backward pass, and each task has one. Use gradient_checkpointing=True."
            )
        auxiliary = {"router": self.router_aux_loss_coef} if self.aux_loss_enabled else {}
        self._tasks, weights = [*self.loss_types, *auxiliary], [*self.loss_weights, *auxiliary.values()]
        self._present = [weight != 0 for weight in weights]
        _check_tasks([*compress(self._tasks, self._present)], self, "List each loss once, with the sum of its weights.")
        # With orthogonal vectors as weights, TRL's sum of losses is the vector of its terms.
        dtype = torch.promote_types(self.model.dtype, torch.float32)
        vectors = torch.diag(torch.tensor(weights, dtype=dtype, device=self.accelerator.device))
        self.loss_weights: Any = [*vectors[: len(self.loss_types)]]
        self.router_aux_loss_coef: Any = vectors[-1]

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the sum of the losses, during training with homogenized gradients."""
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        terms, *outputs = result if return_outputs else [result]
        loss = self.homogenized_loss(dict(compress(zip(self._tasks, terms, strict=True), self._present)), model)
        return (loss, *outputs) if return_outputs else loss


class Coefficient(float):
    """The coefficient of a term of a loss, and a factor 1, by which the loss is differentiated to obtain the term."""

    factor: Tensor | None = None  # no product: the loss does not contain the term

    def __mul__(self, term: Any) -> Any:
        self.factor = term.new_ones((), requires_grad=True)
        return float(self) * term * self.factor


def _check_no_groups(trainer: HomogenizedTrainer, options: Mapping[str, Any]) -> None:
    """Raise OptionError if the tasks would be the groups of a column."""
    if options.get("group_column") is not None:
        raise OptionError(
            f"`group_column` must be None for a {type(trainer).__name__}, whose tasks are rewards or losses; got "
            f"{options['group_column']!r}. Groups are tasks of a HomogenizedTrainer alone or with SFTTrainer."
        )


def _check_tasks(names: Sequence[str], trainer: HomogenizedTrainer, advice: str) -> None:
    """Raise OptionError unless there are several tasks with different names."""
    kind = type(trainer).__name__
    if len(names) < 2:
        raise OptionError(
            f"a {kind} must have at least two tasks; got {[*names]}. For one, use the trainer of TRL, whose gradient "
            f"is the same. {advice}"
        )
    if len({*names}) < len(names):
        raise OptionError(f"the tasks of a {kind} must have different names; got {[*names]}. {advice}")
