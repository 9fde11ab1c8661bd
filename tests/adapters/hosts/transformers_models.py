"""A small encoder with two heads, its data, and its training by Transformers in float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog

for _name in ("transformers", "accelerate", "datasets"):
    pytest.importorskip(_name, reason="needs the extra `transformers`")

from transformers import BertConfig, BertModel, Trainer, TrainingArguments  # noqa: E402

from gradhomog_adapters.transformers import HomogenizedTrainer  # noqa: E402

WORDS, CLASSES = 20, 3


class TwoHeads(nn.Module):
    """Sentiment (`labels`) and topic of a sentence. `forward` has `**kwargs`, as models of Transformers have."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = BertConfig(
            vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        )  # fmt: skip
        self.encoder = BertModel(self.config, add_pooling_layer=False)
        self.sentiment, self.topic = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)
        self.double()

    def forward(self, input_ids: Tensor, labels: Any = None, topics: Any = None, **_: Any) -> dict[str, Tensor]:
        features = self.encoder(input_ids).last_hidden_state[:, 0]
        return {"sentiment": self.sentiment(features), "topic": self.topic(features)}


def examples(count: int = 16, *, missing: int = 0) -> list[dict[str, Any]]:
    """Sentences with two labels; the first `missing` of them have no sentiment."""
    generator = torch.Generator().manual_seed(1)
    rows = [
        {
            "input_ids": torch.randint(WORDS, (5,), generator=generator),
            "labels": int(torch.randint(CLASSES, (), generator=generator)),
            "topics": int(torch.randint(CLASSES, (), generator=generator)),
        }
        for _ in range(count)
    ]
    return [{**row, "labels": -100} if index < missing else row for index, row in enumerate(rows)]


def two_losses(
    outputs: dict[str, Tensor], inputs: dict[str, Any], reduction: str = "mean", smoother: Any = None
) -> dict[str, Tensor]:
    """Cross entropies of both heads; the second one a hundred times as large. `smoother`: of labels, for the first."""
    labels = {"sentiment": inputs["labels"], "topic": inputs["topics"]}
    losses = {
        name: nn.functional.cross_entropy(outputs[name], label, reduction=reduction) for name, label in labels.items()
    }
    if smoother is not None:
        losses["sentiment"] = smoother({"logits": outputs["sentiment"]}, inputs["labels"])
    return {**losses, "topic": 100 * losses["topic"]}


class SumTrainer(Trainer):
    """Transformers' own training of the sum of both losses, means over a batch."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = sum(two_losses(outputs, inputs, smoother=self.label_smoother).values())
        return (loss, outputs) if return_outputs else loss


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "logging_steps": 1}
    training = {"optim": "sgd", "learning_rate": 0.01, "per_device_train_batch_size": 4, "max_steps": 4}
    return TrainingArguments(str(folder), **{**quiet, **training, **options})


class TwoTasks(HomogenizedTrainer):
    """The losses of `SumTrainer`, homogenized."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = self.homogenized_loss(two_losses(outputs, inputs, smoother=self.label_smoother), model)
        return (loss, outputs) if return_outputs else loss


class Groups(HomogenizedTrainer):
    """The mean loss of the topic over each group of sentences, those of one sentiment; NaN for an empty group."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        means, counts = group_means(outputs["topic"], inputs["topics"], inputs["labels"])
        loss = self.homogenized_loss(means, model, examples=counts)
        return (loss, outputs) if return_outputs else loss


def group_means(outputs: Tensor, topics: Tensor, groups: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    losses = nn.functional.cross_entropy(outputs, topics, reduction="none")
    members = {f"group {group}": groups == group for group in range(CLASSES)}
    return {n: losses[chosen].mean() for n, chosen in members.items()}, {n: m.sum() for n, m in members.items()}


def trained(
    kind: type[Trainer], folder: Path, model: nn.Module | None = None, *, missing: int = 0, resume: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    given = {
        key: options.pop(key) for key in ("homogenizers", "eval_dataset", "model_init", "window") if key in options
    }
    model = None if "model_init" in given else TwoHeads() if model is None else model
    trainer = kind(model, arguments(folder, **options), train_dataset=examples(missing=missing), **given)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def homogenized(text: str, folder: Path, model: nn.Module | None = None, **options: Any) -> Any:
    return trained(TwoTasks, folder, model, homogenizers=gradhomog.pipeline(text), **options)
