"""`HomogenizedTrainer` with Transformers itself: "none" is its training, logs and checkpoints are complete."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, Value
from torch import nn
from transformers import DataCollatorWithFlattening, Trainer, TrainerCallback

import gradhomog
from gradhomog import MomentumWarning, OptionError

from .language_models import (
    SOURCES,
    causal,
    classifier,
    llama,
    losses_by_source,
    masked,
    mixture,
    routed,
    trained_on_mixture,
)
from .measures import parameters, rows
from .transformers_models import (
    Groups,
    SumTrainer,
    TwoHeads,
    TwoTasks,
    arguments,
    examples,
    group_means,
    homogenized,
    trained,
    two_losses,
)
from .transformers_on_ranks import EncoderOnly, PerItem

from gradhomog_adapters.transformers import HomogenizedTrainer  # isort: skip

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations within Transformers and PyTorch


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optim": "adamw_torch", "weight_decay": 0.1},
        {"max_grad_norm": 0.1},
        {"label_smoothing_factor": 0.2},
        {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1},
        {"gradient_accumulation_steps": 3, "max_steps": 2},  # the last step of the epoch has one batch
    ],
    ids=str,
)
def test_without_homogenizers_training_is_that_of_the_sum(options: dict[str, Any], tmp_path: Path) -> None:
    plain, found = trained(SumTrainer, tmp_path, **options), homogenized("none", tmp_path, **options)
    torch.testing.assert_close(parameters(found.model), parameters(plain.model), rtol=1e-9, atol=1e-11)
    assert not torch.allclose(parameters(found.model), parameters(TwoHeads()), atol=1e-6)
    for ours, theirs in zip(found.state.log_history, plain.state.log_history, strict=True):
        for key in {"loss", "grad_norm"} & theirs.keys():
            assert ours[key] == pytest.approx(theirs[key], rel=1e-6)


def test_accumulated_batches_have_the_gradient_of_one_large_batch(tmp_path: Path) -> None:
    large = trained(SumTrainer, tmp_path, per_device_train_batch_size=8)
    found = homogenized("none", tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    torch.testing.assert_close(parameters(found.model), parameters(large.model), rtol=1e-9, atol=1e-11)


def test_sums_divided_by_all_accumulated_items_are_not_divided_again(tmp_path: Path) -> None:
    found = [
        trained(PerItem, tmp_path, homogenizers=gradhomog.pipeline("none"), missing=6, max_steps=2, **options)
        for options in (
            {"per_device_train_batch_size": 8},
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        )
    ]
    torch.testing.assert_close(parameters(found[1].model), parameters(found[0].model), rtol=1e-9, atol=1e-11)
    for ours, theirs in zip(found[1].state.log_history, found[0].state.log_history, strict=True):
        if "loss" in theirs:
            assert ours["loss/topic"] == pytest.approx(theirs["loss/topic"])
            assert ours["loss/topic"] + ours["loss/sentiment"] == pytest.approx(ours["loss"], rel=1e-6)


def test_one_step_follows_the_direction_of_the_tasks_gradients(tmp_path: Path) -> None:
    found = homogenized("upgrad", tmp_path, max_steps=1, per_device_train_batch_size=16, max_grad_norm=0.0)
    net, data = TwoHeads(), examples()
    batch = {key: torch.stack([torch.as_tensor(row[key]) for row in data]) for key in data[0]}
    losses = two_losses(net(**batch), batch)
    jacobian = rows(losses.values(), net)
    expected = parameters(net) - 0.01 * 2 * gradhomog.pipeline("upgrad").combine(jacobian)
    torch.testing.assert_close(parameters(found.model), expected, rtol=1e-9, atol=1e-11)
    cosine = float(nn.functional.cosine_similarity(*jacobian, dim=0))
    assert found.state.log_history[0]["cosine/sentiment-topic"] == pytest.approx(cosine)


def test_heads_outside_of_the_shared_parameters_receive_the_gradient_of_their_loss(tmp_path: Path) -> None:
    options = {"max_steps": 1, "max_grad_norm": 0.0}
    plain = trained(SumTrainer, tmp_path, **options)
    found = trained(EncoderOnly, tmp_path, homogenizers=gradhomog.pipeline("static(weights=[1, 0])"), **options)
    torch.testing.assert_close(found.model.topic.weight, plain.model.topic.weight)
    assert not torch.allclose(parameters(found.model.encoder), parameters(plain.model.encoder))


def test_the_logs_of_the_loss_contain_losses_and_weights_if_there_are_any(tmp_path: Path) -> None:
    found = homogenized("static(weights=[1, 3])", tmp_path, logging_steps=2)
    first, second, end = found.state.log_history
    for log in (first, second):
        assert log["loss/sentiment"] + log["loss/topic"] == pytest.approx(log["loss"], rel=1e-6)
        assert (log["weight/sentiment"], log["weight/topic"]) == pytest.approx((0.5, 1.5))
    assert not any("sentiment" in key for key in end)
    log = homogenized("trimmed_mean", tmp_path, max_steps=1).state.log_history[0]
    assert {key for key in log if "topic" in key} == {"loss/topic"}


def test_an_evaluation_reports_each_loss_and_takes_no_step(tmp_path: Path) -> None:
    found = homogenized("uw", tmp_path, eval_dataset=examples(6), eval_strategy="steps", eval_steps=2)
    assert found.homogenizers.steps == 4
    metrics = found.evaluate()  # batches of eight by default
    assert metrics["eval_sentiment_loss"] + metrics["eval_topic_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-6)
    found.args.per_device_eval_batch_size = 4  # batches of four and two: means weigh examples equally
    again = found.evaluate()
    assert again["eval_topic_loss"] == pytest.approx(metrics["eval_topic_loss"], rel=1e-6)
    assert found.predict(examples(6)).metrics["test_topic_loss"] == pytest.approx(metrics["eval_topic_loss"])
    assert found.homogenizers.steps == 4


def test_examples_by_task_weigh_the_batches_in_logs_and_evaluations(tmp_path: Path) -> None:
    found = trained(
        Groups, tmp_path, homogenizers=gradhomog.pipeline("uw"), learning_rate=0.0, logging_steps=4,
        per_device_eval_batch_size=3,
    )  # fmt: skip
    data = examples()  # batches with other numbers of each group, also none
    batch = {key: torch.stack([torch.as_tensor(row[key]) for row in data]) for key in data[0]}
    means, counts = group_means(found.model(**batch)["topic"], batch["topics"], batch["labels"])
    metrics = found.evaluate(data)
    for name, mean in means.items():
        assert 0 < counts[name] < len(data)
        assert metrics[f"eval_{name}_loss"] == pytest.approx(mean.item(), rel=1e-6)
        assert found.state.log_history[0][f"loss/{name}"] == pytest.approx(mean.item(), rel=1e-6)


def test_examples_require_the_names_of_the_losses(tmp_path: Path) -> None:
    found, model = homogenized("none", tmp_path, max_steps=1), TwoHeads()
    losses = {"topic": model.topic.weight.sum()}
    with pytest.raises(OptionError, match=r"must have the keys of `losses`, \['topic'\]; got \['sentiment'\]"):
        found.homogenized_loss(losses, model, examples={"sentiment": 1})
    with pytest.raises(OptionError, match=r"must have names, examples=\{'task': 8\}; got group=Ranks"):
        found.homogenized_loss(losses, model, group=gradhomog.Ranks("batch", examples=[1]))


class PerAccumulated(SumTrainer):
    """Means divided by the number of accumulated batches, as those of TRL's GRPOTrainer."""

    loss_is_scaled_for_ga = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True)
        loss = loss / (self.current_gradient_accumulation_steps if model.training else 1)
        return (loss, outputs) if return_outputs else loss


class PerToken(Trainer):
    """Sums divided by the number of labels of the accumulated batches, as those of TRL's SFTTrainer."""

    loss_is_scaled_for_ga = None  # the rule of Transformers

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        number = len(inputs["labels"]) if num_items_in_batch is None else num_items_in_batch
        loss = sum(two_losses(outputs, inputs, reduction="sum").values()) / number
        return (loss, outputs) if return_outputs else loss


class Undeclared(Trainer):
    """Means over a batch, which it does not declare, as Transformers' own Seq2SeqTrainer."""

    compute_loss = SumTrainer.compute_loss


def beside(other: type[Trainer]) -> type[HomogenizedTrainer]:
    """The loss of another trainer, homogenized as one task."""

    class Both(HomogenizedTrainer, other):  # type: ignore[misc, valid-type]
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            loss = self.homogenized_loss({"sum": loss}, model)
            return (loss, outputs) if return_outputs else loss

    return Both


@pytest.mark.parametrize("other", [SumTrainer, PerAccumulated, PerToken])
@pytest.mark.parametrize("batches", [1, 3])  # of three, the last step of the epoch has one
def test_beside_another_trainer_training_and_logs_are_those_of_the_other(
    other: type[Trainer], batches: int, tmp_path: Path
) -> None:
    options = {"gradient_accumulation_steps": batches, "max_steps": 2}
    alone = trained(other, tmp_path, **options)
    found = trained(beside(other), tmp_path, homogenizers=gradhomog.pipeline("none"), **options)
    torch.testing.assert_close(parameters(found.model), parameters(alone.model), rtol=1e-9, atol=1e-11)
    assert not torch.allclose(parameters(found.model), parameters(TwoHeads()), atol=1e-6)
    for ours, theirs in zip(found.state.log_history, alone.state.log_history, strict=True):
        if "loss" in theirs:
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
            assert ours["loss/sum"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_accumulation_beside_a_trainer_that_does_not_declare_its_scale_is_an_error(tmp_path: Path) -> None:
    options = {"homogenizers": gradhomog.pipeline("none"), "max_steps": 1}
    with pytest.raises(OptionError, match=r"must be declared by Both, because Undeclared does not declare it"):
        trained(beside(Undeclared), tmp_path, gradient_accumulation_steps=2, **options)
    declared = type("Declared", (beside(Undeclared),), {"loss_is_scaled_for_ga": False})
    for kind, batches in ((beside(Undeclared), 1), (declared, 2)):
        found = trained(kind, tmp_path, gradient_accumulation_steps=batches, **options)
        alone = trained(SumTrainer, tmp_path, gradient_accumulation_steps=batches, max_steps=1)
        torch.testing.assert_close(parameters(found.model), parameters(alone.model), rtol=1e-9, atol=1e-11)


def test_the_loss_of_one_task_selects_the_best_model(tmp_path: Path) -> None:
    found = homogenized(
        "none", tmp_path, eval_dataset=examples(6), eval_strategy="steps", eval_steps=1, save_strategy="best",
        metric_for_best_model="eval_sentiment_loss", load_best_model_at_end=True,
    )  # fmt: skip
    best = min(log["eval_sentiment_loss"] for log in found.state.log_history if "eval_sentiment_loss" in log)
    assert found.state.best_metric == best


@pytest.mark.parametrize("text", ["uw", "tracked(method='upgrad')"])
def test_a_run_resumed_from_a_checkpoint_continues_exactly(text: str, tmp_path: Path) -> None:
    options = {"optim": "adamw_torch", "adam_beta1": 0.0, "save_strategy": "steps", "save_steps": 2}
    whole = homogenized(text, tmp_path, TwoHeads(dropout=0.1), **options)
    resumed = homogenized(text, tmp_path, TwoHeads(dropout=0.1), resume=str(tmp_path / "checkpoint-2"), **options)
    assert resumed.homogenizers.steps == whole.homogenizers.steps == 4
    torch.testing.assert_close(parameters(resumed.model), parameters(whole.model), rtol=1e-12, atol=1e-13)


def test_a_checkpoint_without_the_state_of_homogenizers_warns(tmp_path: Path) -> None:
    trained(SumTrainer, tmp_path, save_strategy="steps", save_steps=2)
    with pytest.warns(UserWarning, match=r"checkpoint-2 contains no homogenizers\.pt"):
        homogenized("uw", tmp_path, resume=str(tmp_path / "checkpoint-2"))


def test_each_training_of_a_new_model_starts_with_the_initial_state(tmp_path: Path) -> None:
    found = homogenized("uw", tmp_path, model_init=lambda: TwoHeads())
    once = parameters(found.model)
    found.train()
    assert found.homogenizers.steps == 4
    assert torch.equal(parameters(found.model), once)


def test_an_absent_loss_keeps_its_state_and_is_not_logged(tmp_path: Path) -> None:
    class TopicOnly(HomogenizedTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            losses = two_losses(model(**inputs), inputs)
            return self.homogenized_loss({"sentiment": None, "topic": losses["topic"]}, model)

    found = trained(TopicOnly, tmp_path, homogenizers=gradhomog.pipeline("uw"))
    assert found.report.tasks == (1,)
    assert "loss/topic" in found.state.log_history[0]
    assert "loss/sentiment" not in found.state.log_history[0]


def test_momentum_after_averages_of_rows_warns(tmp_path: Path) -> None:
    with pytest.warns(MomentumWarning, match="tracked averages rows over steps, and AdamW"):
        homogenized("tracked", tmp_path, optim="adamw_torch", max_steps=1)


def test_a_trainer_without_compute_loss_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="must override `compute_loss`"):
        trained(HomogenizedTrainer, tmp_path, homogenizers=gradhomog.pipeline("none"))


@pytest.mark.parametrize("called", [False, True])
def test_a_loss_that_is_not_homogenized_is_an_error_before_a_parameter_changes(called: bool, tmp_path: Path) -> None:
    class Plain(HomogenizedTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            losses = two_losses(model(**inputs), inputs)
            if called:
                self.homogenized_loss(losses, model)
            return sum(losses.values())

    model, pipe = TwoHeads(), gradhomog.pipeline("upgrad")
    with pytest.raises(OptionError, match="the loss that Plain returned for this batch does not contain it"):
        trained(Plain, tmp_path, model, homogenizers=pipe)
    assert torch.equal(parameters(model), parameters(TwoHeads()))
    assert pipe.steps == 0


def test_a_second_function_for_the_loss_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`compute_loss_func` must be None"):
        TwoTasks(
            TwoHeads(), arguments(tmp_path), homogenizers=gradhomog.pipeline("none"), compute_loss_func=lambda *_: 0.0
        )


def test_homogenizers_that_read_features_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="rotograd reads features, which a Trainer does not compute"):
        homogenized("rotograd", tmp_path)


# -- groups of a mixed batch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [causal, masked, classifier])
def test_one_step_follows_the_direction_of_the_groups_gradients(make: Any, tmp_path: Path) -> None:
    data = mixture(12, classes=make is classifier)
    calls = []
    model = make()
    model.register_forward_hook(lambda *_: calls.append(1))
    found = trained_on_mixture(
        tmp_path, "upgrad", model, train_dataset=data, max_steps=1, per_device_train_batch_size=12
    )
    assert len(calls) == 1
    losses, _ = losses_by_source(make(), data)
    assert [*losses] == SOURCES
    net = make()
    losses, _ = losses_by_source(net, data)
    expected = parameters(net) - 0.01 * gradhomog.pipeline("upgrad").combine(rows(losses.values(), net))
    torch.testing.assert_close(parameters(found.model), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"label_smoothing_factor": 0.1}], ids=str)
def test_with_groups_of_equal_size_the_plain_mean_trains_and_logs_as_transformers(
    options: dict[str, Any], tmp_path: Path
) -> None:
    data, options = mixture(equal=True), {"per_device_train_batch_size": 6, "max_steps": 2, **options}
    plain = Trainer(
        llama(), arguments(tmp_path, max_grad_norm=0.0, train_sampling_strategy="sequential", **options),
        train_dataset=data.remove_columns("source"),
    )  # fmt: skip
    plain.train()
    found = trained_on_mixture(tmp_path, "none", llama(), train_dataset=data, **options)
    # The loss of Transformers is in single precision.
    torch.testing.assert_close(parameters(found.model), parameters(plain.model), rtol=1e-6, atol=1e-8)
    assert found.state.log_history[0]["loss"] == pytest.approx(plain.state.log_history[0]["loss"], rel=1e-6)


def test_logs_and_evaluations_of_groups_are_means_over_all_tokens(tmp_path: Path) -> None:
    data = mixture(24)
    found = trained_on_mixture(
        tmp_path, "none", learning_rate=0.0, max_steps=4, logging_steps=4, per_device_train_batch_size=6,
        per_device_eval_batch_size=5, eval_dataset=mixture(20),
    )  # fmt: skip
    losses, _ = losses_by_source(causal(), data)
    of_evaluation, counts = losses_by_source(causal(), mixture(20))
    metrics = found.evaluate()
    assert set(counts) == set(SOURCES)
    for source in SOURCES:
        assert found.state.log_history[0][f"loss/{source}"] == pytest.approx(losses[source].item(), rel=1e-9)
        assert metrics[f"eval_{source}_loss"] == pytest.approx(of_evaluation[source].item(), rel=1e-9)
    plain = Trainer(causal(), arguments(tmp_path, per_device_eval_batch_size=5))
    expected = plain.evaluate(mixture(20).remove_columns("source"))["eval_loss"]
    assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_a_prediction_without_labels_receives_no_column(tmp_path: Path) -> None:
    found = trained_on_mixture(tmp_path, "none", max_steps=1)
    output = found.predict(mixture(6).remove_columns("labels"))
    assert output.predictions.shape[0] == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_dataset": mixture(6).remove_columns("source")}, "must be a column of the dataset.*got 'source'"),
        ({"train_dataset": mixture(6).select([0])}, "all of its values, at least two; got code"),
        ({"train_dataset": [{"input_ids": [1, 2], "labels": [1, 2]}]}, "must be a key of each example.*got 'source'"),
        ({"groups": ["code", "law"]}, "at least two; got code, law, but a dataset has wiki"),
        (
            {"groups": ["code", "law"], "train_dataset": [*mixture(6)], "max_steps": 2},
            "one of the groups code, law in its column 'source'; got 'wiki'",
        ),
        ({"data_collator": DataCollatorWithFlattening(), "max_steps": 1}, "one group in 'source' for each example"),
        ({"train_dataset": mixture(6).to_iterable_dataset(), "max_steps": 1}, "must be passed as `groups`"),
        (
            {"model": classifier(1), "train_dataset": mixture(6, classes=True).cast_column("labels", Value("float64"))},
            r"got logits \[4, 1\], labels \[4\]. Override `token_losses`",
        ),
        ({"model": routed(), "max_steps": 1}, "must be the loss of MixtralForCausalLM; .*such as that of a router"),
        (
            {
                "text": "tracked",
                "adam_beta1": 0.0,
                "window": True,
                "gradient_accumulation_steps": 3,
                "per_device_train_batch_size": 1,
            },
            "tracked chooses among the tasks of the first batch",
        ),
    ],
)
def test_groups_that_are_not_known_are_errors(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        trained_on_mixture(tmp_path, **{"text": "none", **options})


def test_numbers_of_sources_in_any_form_are_their_names(tmp_path: Path) -> None:
    rows = [{**row, "source": SOURCES.index(row["source"])} for row in mixture(6)]
    tensors = [{**row, "source": torch.tensor(row["source"])} for row in rows]
    for data in (rows, tensors, Dataset.from_list(rows).with_format("torch")):
        found = trained_on_mixture(tmp_path, "none", train_dataset=data, max_steps=1, per_device_train_batch_size=6)
        assert found.report.names == ("0", "1", "2")


def test_data_without_groups_are_evaluated_and_predicted_as_by_transformers(tmp_path: Path) -> None:
    found, data = trained_on_mixture(tmp_path, "none", max_steps=1), mixture(8).remove_columns("source")
    metrics = found.evaluate(data)
    expected = Trainer(found.model, arguments(tmp_path)).evaluate(data)["eval_loss"]
    assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-9)
    assert "eval_wiki_loss" not in metrics
    found.evaluate(mixture(8))
    with pytest.raises(OptionError, match="a batch must have one group in 'source' for each example; got none"):
        found.compute_loss(found.model, found.data_collator([*data]))  # not the groups of the evaluation
    assert len(found.predict(data.remove_columns("labels")).predictions) == 8


# -- the window of an optimizer step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["none", "upgrad", "gradnorm", "uw"])
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1, "optim": "adamw_torch"}], ids=str)
def test_a_window_of_batches_of_one_example_trains_as_one_large_batch(
    text: str, options: dict[str, Any], tmp_path: Path
) -> None:
    options = {"logging_steps": 1, "max_steps": 5, **options}  # the last step of the epoch has four examples
    large = trained_on_mixture(tmp_path, text, per_device_train_batch_size=5, **options)
    small = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 5, "window": True}
    found = trained_on_mixture(tmp_path, text, **small, **options)
    torch.testing.assert_close(parameters(found.model), parameters(large.model), rtol=1e-9, atol=1e-11)
    assert found.homogenizers.steps == 5
    for ours, theirs in zip(found.state.log_history, large.state.log_history, strict=True):
        names = {name for name in theirs if "/" in name or name == "grad_norm"}
        assert {name: ours[name] for name in names} == pytest.approx({n: theirs[n] for n in names}, rel=1e-6)
    if text == "upgrad":  # without a window each batch has one task, so that methods on rows are the plain mean
        without = trained_on_mixture(tmp_path, text, **{**small, "window": False}, **options)
        assert not torch.allclose(parameters(without.model), parameters(large.model), rtol=1e-6)


@pytest.mark.parametrize("kind", [TwoTasks, Groups, PerItem])
def test_a_window_over_losses_of_any_scale_trains_as_one_large_batch(kind: Any, tmp_path: Path) -> None:
    options = {"homogenizers": gradhomog.pipeline("upgrad"), "max_steps": 2}
    large = trained(kind, tmp_path, per_device_train_batch_size=8, **options)
    options = {"homogenizers": gradhomog.pipeline("upgrad"), "max_steps": 2, "window": True}
    found = trained(kind, tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, **options)
    torch.testing.assert_close(parameters(found.model), parameters(large.model), rtol=1e-9, atol=1e-11)
    for task in found.report.names:
        logged = [trainer.state.log_history[1][f"loss/{task}"] for trainer in (found, large)]
        assert logged[0] == pytest.approx(logged[1], rel=1e-9)


def test_numbers_of_examples_in_some_batches_of_a_window_only_are_an_error(tmp_path: Path) -> None:
    class Sometimes(HomogenizedTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            losses = two_losses(model(**inputs), inputs)
            examples = None if self._counted else dict.fromkeys(losses, 4)
            return self.homogenized_loss(losses, model, examples=examples)

    options = {"homogenizers": gradhomog.pipeline("none"), "window": True, "gradient_accumulation_steps": 2}
    with pytest.raises(OptionError, match="for all batches of a window or for none"):
        trained(Sometimes, tmp_path, **options)


def test_a_run_with_a_window_resumed_from_a_checkpoint_continues_exactly(tmp_path: Path) -> None:
    options = {
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 5, "window": True, "save_strategy": "steps",
        "save_steps": 2, "max_steps": 4,
    }  # fmt: skip
    whole = trained_on_mixture(tmp_path, "uw", **options)
    resumed = trained_on_mixture(tmp_path, "uw", resume=str(tmp_path / "checkpoint-2"), **options)
    torch.testing.assert_close(parameters(resumed.model), parameters(whole.model), rtol=1e-12, atol=1e-13)


def test_a_window_that_was_interrupted_is_not_a_part_of_the_next(tmp_path: Path) -> None:
    class Interrupted(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            raise KeyboardInterrupt

    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2}
    trainer = TwoTasks(
        TwoHeads(), arguments(tmp_path, **options), train_dataset=examples(), window=True,
        homogenizers=gradhomog.pipeline("upgrad"), callbacks=[Interrupted()],
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.pop_callback(Interrupted)
    trainer.train()
    expected = homogenized("upgrad", tmp_path, window=True, **options)
    torch.testing.assert_close(parameters(trainer.model), parameters(expected.model), rtol=1e-12, atol=1e-13)
