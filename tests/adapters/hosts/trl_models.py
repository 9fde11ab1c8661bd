"""A small Llama with a vocabulary of words, rewards and preferences, and their training by TRL in float64.

TRL computes log-probabilities in float32, also for a model in float64.
"""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer
from trl import DPOConfig, GRPOConfig

import gradhomog

from .measures import parameters

WORDS = [f"w{number}" for number in range(28)]
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SPECIAL = {"vocab_size": 30, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
QUIET = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "bf16": False}
TRAINING = {"optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.0, "max_steps": 2, "logging_steps": 1}
MPO = {"sigmoid": 0.8, "bco_pair": 0.2, "sft": 1.0}
NORMALIZED = "reweight(beta=0, solver='fixed_point')"
"""A method whose result does not magnify rounding where two losses have nearly the same gradient."""


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", pad_token="<pad>", eos_token="<eos>")


def llama(seed: int = 0) -> LlamaForCausalLM:
    """Return a model with the same parameters at every call, in the default type."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SPECIAL, **SIZES))


def even(completions: list[str], **_: Any) -> list[float]:
    return [sum(word in WORDS[::2] for word in text.split()) / 8 for text in completions]


def low(completions: list[str], **_: Any) -> list[float]:
    return [20 * sum(word in WORDS[:9] for word in text.split()) / 8 for text in completions]


def odd(completions: list[str], **_: Any) -> list[float]:
    """Return a reward in conflict with `even`."""
    return [0.1 * len(text) - 0.9 * share for text, share in zip(completions, even(completions), strict=True)]


def sometimes(completions: list[str], **_: Any) -> list[float | None]:
    """Return the reward `low`, without the unit, of two thirds of the completions."""
    return [value / 20 if index % 3 else None for index, value in enumerate(low(completions))]


def constant(completions: list[str], **_: Any) -> list[float]:
    return [0.1] * len(completions)


def never(completions: list[str], **_: Any) -> list[None]:
    return [None] * len(completions)


def grpo(
    kind: type[Trainer], folder: Path, rewards: Any = (even, low), model: Any = None, homogenizers: str | None = None,
    resume: Any = None, peft_config: Any = None, eval_dataset: Any = None, given: Any = (), **options: Any,
) -> Any:  # fmt: skip
    """Return a trainer after training; the reference model of `beta` has other parameters than the model."""
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 6}
    args = GRPOConfig(str(folder / "grpo"), **{**QUIET, **TRAINING, **sizes, **options})
    given = dict(given) | ({} if homogenizers is None else {"homogenizers": gradhomog.pipeline(homogenizers)})
    if args.beta and not (folder / "reference").exists():
        llama(5).save_pretrained(folder / "reference")
    model = llama() if model is None else model
    model.config._name_or_path = str(folder / "reference")
    prompts = Dataset.from_dict({"prompt": [f"w{number} w{3 * number % 28}" for number in range(28)]})
    trainer = kind(
        model, [*rewards], args, train_dataset=prompts, eval_dataset=prompts.select(range(2)) if eval_dataset else None,
        processing_class=tokenizer(), peft_config=peft_config, **given,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def dpo(
    kind: type[Trainer], folder: Path, losses: dict[str, float], model: Any = llama, homogenizers: str | None = None,
    given: Any = (), **options: Any,
) -> Any:  # fmt: skip
    weighted = {"loss_type": [*losses], "loss_weights": [*losses.values()]}
    args = DPOConfig(
        str(folder / "dpo"), **{**QUIET, **TRAINING, "per_device_train_batch_size": 4, **weighted, **options}
    )
    given = dict(given) | ({} if homogenizers is None else {"homogenizers": gradhomog.pipeline(homogenizers)})
    pairs = Dataset.from_list(
        [
            {"prompt": f"w{n}", "chosen": f" w{n * n % 28} w{n % 5}", "rejected": f" w{n % 7}" + n % 3 * " w9"}
            for n in range(16)
        ]
    )
    trainer = kind(
        model(), ref_model=model(1), args=args, train_dataset=pairs, eval_dataset=pairs.select(range(6)),
        processing_class=tokenizer(), **given,
    )  # fmt: skip
    trainer.train()
    return trainer


def close(found: Any, expected: Any, start: Tensor) -> None:
    """Assert that two trainers moved their models equally far, up to the rounding of log-probabilities."""
    first, second = (value if isinstance(value, Tensor) else parameters(value.model) for value in (found, expected))
    scale = (second - start).abs().max()
    assert scale > 0
    assert (first - second).abs().max() < 3e-6 * scale
