"""Small language models from configuration, a mixture of three sources, and the losses of its groups by hand."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
)

import gradhomog

from .transformers_models import HomogenizedTrainer, arguments

SOURCES, WORDS, LENGTH = ["code", "law", "wiki"], 12, 6
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


def causal() -> PreTrainedModel:
    torch.manual_seed(0)
    options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    sizes = {"vocab_size": WORDS, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, **options)).double()


def llama() -> PreTrainedModel:
    """A causal model of which Transformers counts the labels rightly; it normalizes in single precision."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=1, use_cache=False)).double()


def routed() -> PreTrainedModel:
    """A mixture of experts, whose loss contains that of its router."""
    torch.manual_seed(0)
    options = {"num_local_experts": 2, "num_experts_per_tok": 1, "output_router_logits": True}
    return MixtralForCausalLM(MixtralConfig(**SMALL, num_key_value_heads=1, use_cache=False, **options))


def masked() -> PreTrainedModel:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).double()


def classifier(classes: int = 3) -> PreTrainedModel:
    """A model of sentences; with one class of a number."""
    torch.manual_seed(0)
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": classes}
    return BertForSequenceClassification(BertConfig(**SMALL, **options)).double()


def mixture(count: int = 24, *, classes: bool = False, equal: bool = False) -> Dataset:
    """Sentences of three sources of which the first two or three tokens do not count; one sentence has none that does.

    `equal`: the same number of each source in every three examples, all tokens count.
    """
    generator = torch.Generator().manual_seed(1)
    examples = []
    for index in range(count):
        words = torch.randint(WORDS, (LENGTH,), generator=generator).tolist()
        without = 0 if equal else LENGTH if index == 5 else 2 + index % 2
        source = SOURCES[index % 3] if equal else SOURCES[(index * index + index // 2) % 3]
        labels = words[0] % 3 if classes else [-100] * without + words[without:]
        examples.append({"input_ids": words, "labels": labels, "source": source})
    return Dataset.from_list(examples)


def trained_on_mixture(folder: Path, text: str, model: nn.Module | None = None, **options: Any) -> Any:
    """Train on the mixture without shuffling, with the sources as groups."""
    names = ("window", "groups", "eval_dataset", "resume", "data_collator")
    own = {key: options.pop(key) for key in names if key in options}
    data = options.pop("train_dataset", None)
    resume = own.pop("resume", None)
    options = {"train_sampling_strategy": "sequential", "max_grad_norm": 0.0, **options}
    trainer = HomogenizedTrainer(
        causal() if model is None else model, arguments(folder, **options), group_column="source",
        train_dataset=mixture() if data is None else data, homogenizers=gradhomog.pipeline(text), **own,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses_by_source(model: Any, data: Dataset) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the mean loss of each source's tokens, and their number, one example after the other."""
    tokens: dict[str, list[Tensor]] = {}
    for row in data:
        logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0]
        labels = torch.tensor(row["labels"])
        if labels.dim() == 0:
            logits, labels = logits[None], labels[None]
        if isinstance(model, GPT2LMHeadModel):
            logits, labels = logits[:-1], labels[1:]
        counts = labels != -100
        tokens.setdefault(row["source"], []).append(cross_entropy(logits[counts], labels[counts], reduction="none"))
    found = {source: torch.cat(tokens[source]) for source in sorted(tokens)}
    return {source: losses.mean() for source, losses in found.items()}, {s: len(losses) for s, losses in found.items()}
