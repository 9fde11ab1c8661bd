"""Trainers of Sentence Transformers: "none" is plain training; datasets, and components of a loss, are tasks."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import MomentumWarning, OneTaskWarning, OptionError

for _name in ("sentence_transformers", "datasets", "tokenizers"):
    pytest.importorskip(_name, reason="needs the extra `sentence-transformers`")

import tokenizers  # noqa: E402
from datasets import Dataset  # noqa: E402
from sentence_transformers import (  # noqa: E402
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    sparse_encoder,
)
from sentence_transformers.sentence_transformer import losses as st_losses  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding, Transformer  # noqa: E402
from sentence_transformers.sparse_encoder.modules import SpladePooling  # noqa: E402
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizer  # noqa: E402

from gradhomog_adapters.sentence_transformers import HomogenizedDatasets, HomogenizedSentenceTransformerTrainer  # noqa: E402

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


LABELS = Dataset.from_dict({"a": WORDS, "b": WORDS[::-1], "label": [0, 1] * 3})


class Components(nn.Module):
    """A loss of pairs and two regularizers, as in the documentation of `GlobalOrthogonalRegularizationLoss`."""

    def __init__(self, net: SentenceTransformer) -> None:
        super().__init__()
        self.model = net
        self.pairs = st_losses.CosineSimilarityLoss(net)
        self.spread = st_losses.GlobalOrthogonalRegularizationLoss(net)

    def forward(self, features: Any, labels: Tensor) -> dict[str, Tensor]:
        embeddings = [self.model(one)["sentence_embedding"] for one in features]
        pairs = self.pairs.compute_loss_from_embeddings(embeddings, labels)
        return {"pairs": pairs, **self.spread.compute_loss_from_embeddings(embeddings, labels)}


def softmax(net: SentenceTransformer) -> nn.Module:
    """A loss with a classifier, with the same parameters at every call."""
    torch.manual_seed(1)
    return st_losses.SoftmaxLoss(net, 4, 2).double()


def save_bert(kind: type, folder: Path) -> None:
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, **{w: i + 5 for i, w in enumerate(WORDS)}}
    BertTokenizer(words).save_pretrained(folder)
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    kind(BertConfig(vocab_size=len(words), **sizes, **dropout)).save_pretrained(folder)


def arguments(folder: Path, kind: Any = SentenceTransformerTrainingArguments, **options: Any) -> Any:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "logging_steps": 1}
    training = {"optim": "sgd", "learning_rate": 0.1, "per_device_train_batch_size": 4, "max_steps": 4}
    sampler = {"multi_dataset_batch_sampler": "round_robin"}
    return kind(str(folder), **{**quiet, **training, **sampler, **options})


def trained(
    folder: Path, text: str | None = None, *, loss: Any = st_losses.CosineSimilarityLoss, train: Any = None,
    resume: Any = None, evaluate: Any = None, net: SentenceTransformer | None = None, window: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    net, given = model() if net is None else net, data() if train is None else train
    homogenizers: Any = {} if text is None else {"homogenizers": gradhomog.pipeline(text), "window": window}
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
        {"gradient_accumulation_steps": 3, "max_steps": 3, "window": True},
        {"loss": {"close": st_losses.CosineSimilarityLoss, "same": st_losses.MultipleNegativesRankingLoss}},
        {"loss": Components, "train": data(16)["close"]},
        {"loss": {"close": Components, "same": st_losses.CosineSimilarityLoss}},
    ],
    ids=["sgd", "adamw", "accumulated", "window", "two losses", "components", "components of one of two losses"],
)
def test_without_homogenizers_training_is_that_of_sentence_transformers(options: Any, tmp_path: Path) -> None:
    plain, found = trained(tmp_path, **options), trained(tmp_path, "none", **options)
    torch.testing.assert_close(parameters(found.model), parameters(plain.model), rtol=1e-9, atol=1e-11)
    assert not torch.allclose(parameters(found.model), parameters(model()), atol=1e-7)


def test_the_base_loss_and_the_regularizers_of_splade_are_tasks(tmp_path: Path) -> None:
    class Homogenized(HomogenizedDatasets, sparse_encoder.SparseEncoderTrainer):
        pass

    save_bert(BertForMaskedLM, tmp_path)
    found = []
    for text in (None, "none"):
        transformer = Transformer(str(tmp_path), transformer_task="fill-mask")
        net = sparse_encoder.SparseEncoder(modules=[transformer, SpladePooling()], device="cpu").double()
        pairs = sparse_encoder.losses.SparseMultipleNegativesRankingLoss(net)
        loss = sparse_encoder.losses.SpladeLoss(net, pairs, document_regularizer_weight=1, query_regularizer_weight=1)
        given = arguments(tmp_path, sparse_encoder.SparseEncoderTrainingArguments)
        homogenizers: Any = {} if text is None else {"homogenizers": gradhomog.pipeline(text)}
        kind = sparse_encoder.SparseEncoderTrainer if text is None else Homogenized
        trainer = kind(net, given, data(16)["close"].remove_columns("score"), loss=loss, **homogenizers)
        trainer.train()
        found.append(parameters(net))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-11)
    assert {"loss/base_loss", "loss/document_regularizer_loss"} <= trainer.state.log_history[0].keys()


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


@pytest.mark.parametrize("text", ["upgrad", "mgda", "uw"])
def test_a_window_of_two_datasets_is_a_step_with_the_gradients_of_both(text: str, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "max_steps": 1, "learning_rate": 1e-9, "max_grad_norm": 0.0}
    found = trained(tmp_path, text, window=True, **options)
    log = found.state.log_history[0]
    losses = torch.tensor([log["loss/close"], log["loss/same"]]) if text == "uw" else None
    expected = gradhomog.pipeline(text).combine(torch.stack(rows(2, tmp_path)), losses)
    torch.testing.assert_close((parameters(model()) - parameters(found.model)) / 1e-9, expected, rtol=1e-4, atol=1e-6)


def test_a_step_follows_the_method_for_the_gradients_of_the_components(tmp_path: Path) -> None:
    net, train = model(), data(4)["close"]
    features = [net.preprocess(train[column][:]) for column in ("a", "b")]
    components = Components(net)(features, torch.tensor(train["score"][:], dtype=torch.float64))
    gradients = {
        name: torch.cat([part.flatten() for part in torch.autograd.grad(loss, [*net.parameters()], retain_graph=True)])
        for name, loss in components.items()
    }
    options = {"learning_rate": 1e-9, "max_grad_norm": 0.0, "max_steps": 1}
    found = trained(tmp_path, "upgrad", loss=Components, train=train, **options)
    expected = len(gradients) * gradhomog.pipeline("upgrad").combine(torch.stack([*gradients.values()]))
    torch.testing.assert_close((parameters(net) - parameters(found.model)) / 1e-9, expected, rtol=1e-4, atol=1e-6)


def test_the_sizes_of_the_example_are_the_terms_of_the_matryoshka_loss(tmp_path: Path) -> None:
    example = runpy.run_path(str(Path(__file__).parents[3] / "docs/examples/sentence_transformers_components.py"))
    pairs, train = st_losses.MultipleNegativesRankingLoss, data()["close"].remove_columns("score")
    whole = trained(tmp_path, loss=lambda net: st_losses.MatryoshkaLoss(net, pairs(net), [4, 2]), train=train)
    parts = trained(tmp_path, "none", loss=lambda net: example["EachSize"](net, pairs(net), [4, 2]), train=train)
    torch.testing.assert_close(parameters(parts.model), parameters(whole.model), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"close", "same"}),
        ({"loss": Components, "train": data()["close"]}, {"pairs", "gor_mean", "gor_second_moment"}),
        (
            {"loss": {"close": Components, "same": st_losses.CosineSimilarityLoss}},
            {"close/pairs", "close/gor_mean", "close/gor_second_moment", "same"},
        ),
    ],
    ids=["datasets", "components", "components of datasets"],
)
def test_tasks_have_the_names_of_datasets_and_components(options: Any, names: set[str], tmp_path: Path) -> None:
    found = trained(tmp_path, "tracked(method='upgrad', rows='all')", **options)
    logged = {key.removeprefix("loss/") for log in found.state.log_history for key in log if key.startswith("loss/")}
    [tracked] = found.homogenizers
    assert logged == names == tracked.averages.keys()


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
    train = {"labels": LABELS, "more": LABELS}
    plain, zero = (
        trained(tmp_path, text, loss=softmax, train=train, max_steps=1) for text in (None, "static(weights=[0, 1])")
    )
    torch.testing.assert_close(zero.loss.classifier.weight, plain.loss.classifier.weight)
    assert not torch.equal(plain.loss.classifier.weight, softmax(model()).classifier.weight)


def test_a_loss_with_a_gradient_cache_is_refused(tmp_path: Path) -> None:
    save_bert(BertModel, tmp_path)
    net = SentenceTransformer(modules=[Transformer(str(tmp_path)), Pooling(4)], device="cpu")
    losses = {
        "close": st_losses.CosineSimilarityLoss,
        "same": lambda net: st_losses.MatryoshkaLoss(net, st_losses.CachedMultipleNegativesRankingLoss(net), [4]),
    }
    with pytest.raises(OptionError, match="the loss of same must be a function of the model's parameters"):
        trained(tmp_path, "tracked", loss=losses, net=net)


def test_one_dataset_and_one_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"`train_dataset` must be a dict of datasets.*or the loss must return a dict"
    ):
        trained(tmp_path, "tracked", train=data()["close"])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("upgrad", {"group_column": "score"}, "do not support `group_column`"),
        ("tracked", {"window": True}, "`window` must be False for tracked"),
    ],
    ids=["group_column", "window"],
)
def test_groups_of_mixed_batches_and_a_window_of_averages_are_refused(
    text: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    net, pipe = model(), gradhomog.pipeline(text)
    with pytest.raises(OptionError, match=message):
        HomogenizedSentenceTransformerTrainer(net, arguments(tmp_path), data(), homogenizers=pipe, **options)


def test_a_method_on_gradients_without_tracked_warns(tmp_path: Path) -> None:
    with pytest.warns(OneTaskWarning, match=r"upgrad had no effect.*tracked\(method=...\)"):
        trained(tmp_path, "upgrad", max_steps=10)


def test_momentum_after_tracked_warns(tmp_path: Path) -> None:
    with pytest.warns(MomentumWarning, match="AdamW averages its direction"):
        trained(tmp_path, "tracked", max_steps=1, optim="adamw_torch")
