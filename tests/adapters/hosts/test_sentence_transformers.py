"""The trainer with one dataset per batch: "none" is plain training, `tracked` averages the rows of each dataset."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import MomentumWarning, OptionError

for _name in ("sentence_transformers", "datasets", "tokenizers"):
    pytest.importorskip(_name, reason="needs the extra `sentence-transformers`")

import tokenizers  # noqa: E402
from datasets import Dataset  # noqa: E402
from sentence_transformers import (  # noqa: E402
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses as st_losses  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding, Transformer  # noqa: E402
from transformers import BertConfig, BertModel, BertTokenizer  # noqa: E402

from gradhomog_adapters.sentence_transformers import HomogenizedSentenceTransformerTrainer  # noqa: E402

from .measures import parameters  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations within Transformers and datasets

WORDS = ["red", "green", "blue", "cat", "dog", "bird"]


def model() -> SentenceTransformer:
    """Mean of word vectors, and a layer, with the same parameters at every call."""
    torch.manual_seed(0)
    vocabulary = {"[UNK]": 0, **{word: index + 1 for index, word in enumerate(WORDS)}}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    modules = [StaticEmbedding(words, embedding_dim=6), Dense(6, 4)]
    return SentenceTransformer(modules=modules, device="cpu").double()


def data(count: int = 8) -> dict[str, Dataset]:
    """Two datasets of pairs of words with other scores."""
    first, second = [WORDS[i % 6] for i in range(count)], [WORDS[(i * i + 1) % 6] for i in range(count)]
    scores = {"close": [(i % 3) / 2 for i in range(count)], "same": [float(i % 2) for i in range(count)]}
    return {name: Dataset.from_dict({"a": first, "b": second, "score": score}) for name, score in scores.items()}


def arguments(folder: Path, **options: Any) -> SentenceTransformerTrainingArguments:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "logging_steps": 1}
    training = {"optim": "sgd", "learning_rate": 0.1, "per_device_train_batch_size": 4, "max_steps": 4}
    sampler = {"multi_dataset_batch_sampler": "round_robin"}
    return SentenceTransformerTrainingArguments(str(folder), **{**quiet, **training, **sampler, **options})


def trained(
    folder: Path, text: str | None = None, *, loss: Any = st_losses.CosineSimilarityLoss, train: Any = None,
    resume: Any = None, evaluate: Any = None, net: SentenceTransformer | None = None, **options: Any,
) -> Any:  # fmt: skip
    net, given = model() if net is None else net, data() if train is None else train
    homogenizers = {} if text is None else {"homogenizers": gradhomog.pipeline(text)}
    kind = SentenceTransformerTrainer if text is None else HomogenizedSentenceTransformerTrainer
    loss = {name: each(net) for name, each in loss.items()} if isinstance(loss, dict) else loss(net)
    trainer = kind(net, arguments(folder, **options), given, eval_dataset=evaluate, loss=loss, **homogenizers)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optim": "adamw_torch", "weight_decay": 0.1, "max_grad_norm": 0.01},
        {"gradient_accumulation_steps": 2, "max_steps": 2},
        {"loss": {"close": st_losses.CosineSimilarityLoss, "same": st_losses.MultipleNegativesRankingLoss}},
    ],
    ids=["sgd", "adamw", "accumulated", "two losses"],
)
def test_without_homogenizers_training_is_that_of_sentence_transformers(options: Any, tmp_path: Path) -> None:
    plain, found = trained(tmp_path, **options), trained(tmp_path, "none", **options)
    torch.testing.assert_close(parameters(found.model), parameters(plain.model), rtol=1e-9, atol=1e-11)
    assert not torch.allclose(parameters(found.model), parameters(model()), atol=1e-7)


def rows(steps: int, folder: Path) -> list[Tensor]:
    """The gradients of plain training with a rate so small that they are those of the first parameters, by step."""
    found: list[Tensor] = []

    class Rows(SentenceTransformerTrainer):
        def training_step(self, model: nn.Module, *args: Any) -> Tensor:
            loss = super().training_step(model, *args)
            found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).clone())
            return loss

    net = model()
    given = arguments(folder, max_steps=steps, learning_rate=1e-9, max_grad_norm=0.0)
    Rows(net, given, data(), loss={name: st_losses.CosineSimilarityLoss(net) for name in data()}).train()
    return found


def test_tracked_applies_the_method_to_the_last_gradients_of_both_datasets(tmp_path: Path) -> None:
    found = rows(2, tmp_path)  # round robin: one batch of each dataset
    options = {"learning_rate": 1e-9, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    text = "tracked(method='aligned_mtl', average=0)"
    once = parameters(trained(tmp_path, text, max_steps=1, **options).model)
    twice = parameters(trained(tmp_path, text, max_steps=2, **options).model)
    expected = gradhomog.pipeline("aligned_mtl").combine(torch.stack(found))
    torch.testing.assert_close((once - twice) / 1e-9, expected, rtol=1e-4, atol=1e-6)


def test_the_names_of_the_datasets_are_the_domains(tmp_path: Path) -> None:
    found = trained(tmp_path, "tracked(method='upgrad')")
    assert "close" in str(found.homogenizers.state_dict())
    logged = {key for log in found.state.log_history for key in log}
    assert {"loss/close", "loss/same"} <= logged


def test_a_run_resumed_from_a_checkpoint_continues_exactly(tmp_path: Path) -> None:
    options = {"optim": "adamw_torch", "adam_beta1": 0.0, "save_strategy": "steps", "save_steps": 2}
    text = "tracked(method='upgrad')"
    whole = trained(tmp_path, text, net=model().float(), **options)  # float32, in which models are loaded
    resumed = trained(tmp_path, text, net=model().float(), resume=str(tmp_path / "checkpoint-2"), **options)
    assert resumed.homogenizers.steps == whole.homogenizers.steps == 4
    torch.testing.assert_close(parameters(resumed.model), parameters(whole.model), rtol=1e-6, atol=1e-8)


def test_evaluation_is_that_of_sentence_transformers(tmp_path: Path) -> None:
    found, plain = (trained(tmp_path, text, evaluate=data(4)) for text in ("none", None))
    ours, theirs = found.evaluate(), plain.evaluate()
    assert ours.keys() == theirs.keys()
    assert ours["eval_close_loss"] == pytest.approx(theirs["eval_close_loss"])
    assert found.homogenizers.steps == 4


def test_parameters_of_a_loss_receive_their_own_gradient(tmp_path: Path) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(12, 2).double().state_dict()
    labels = Dataset.from_dict({"a": WORDS, "b": WORDS[::-1], "label": [0, 1] * 3})
    found = []
    for text in (None, "static(weights=[0, 1])"):

        class Classifier(st_losses.SoftmaxLoss):
            def __init__(self, net: SentenceTransformer) -> None:
                super().__init__(net, 4, 2)
                self.classifier.double().load_state_dict(layer)

        found.append(trained(tmp_path, text, loss=Classifier, train={"labels": labels, "more": labels}, max_steps=1))
    plain, zero = found
    torch.testing.assert_close(zero.loss.classifier.weight, plain.loss.classifier.weight)
    assert not torch.equal(plain.loss.classifier.weight, layer["weight"])


def test_a_loss_with_a_gradient_cache_is_refused(tmp_path: Path) -> None:
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, **{w: i + 5 for i, w in enumerate(WORDS)}}
    BertTokenizer(words).save_pretrained(tmp_path)
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(tmp_path)
    net = SentenceTransformer(modules=[Transformer(str(tmp_path)), Pooling(4)], device="cpu")
    pairs = {name: dataset.remove_columns("score") for name, dataset in data().items()}
    with pytest.raises(OptionError, match="loss of dataset 'close' must be a function of the model's parameters"):
        trained(tmp_path, "tracked", loss=st_losses.CachedMultipleNegativesRankingLoss, train=pairs, net=net)


def test_one_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`train_dataset` must be a dict of datasets"):
        trained(tmp_path, "tracked", train=data()["close"])


def test_a_method_on_gradients_without_tracked_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"upgrad receives one gradient per step.*tracked\(method='upgrad'\)"):
        trained(tmp_path, "upgrad", max_steps=1)


def test_momentum_after_tracked_warns(tmp_path: Path) -> None:
    with pytest.warns(MomentumWarning, match="AdamW averages its direction"):
        trained(tmp_path, "tracked", max_steps=1, optim="adamw_torch")
