"""The trainers of TRL: "none" is TRL's training, and each row is the gradient of one reward or loss."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import gradhomog
from gradhomog import OptionError

for _name in ("trl", "peft"):
    pytest.importorskip(_name, reason="needs the extra `trl`")

import datasets  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import MixtralConfig, MixtralForCausalLM  # noqa: E402
from trl import DPOTrainer, GRPOTrainer, SFTConfig, SFTTrainer  # noqa: E402

from gradhomog_adapters.transformers import HomogenizedTrainer  # noqa: E402
from gradhomog_adapters.trl import HomogenizedDPOTrainer, HomogenizedGRPOTrainer  # noqa: E402

from .measures import parameters  # noqa: E402
from .torchrun import on_two_ranks  # noqa: E402
from .trl_models import (  # noqa: E402
    MPO,
    NORMALIZED,
    QUIET,
    SIZES,
    SPECIAL,
    TRAINING,
    WORDS,
    close,
    constant,
    dpo,
    even,
    grpo,
    llama,
    low,
    never,
    odd,
    sometimes,
    tokenizer,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations within TRL and Transformers


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    datasets.disable_progress_bars()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def recorded(kind: type) -> type:
    """Return a trainer that keeps the gradient of each loss before its first step, without clipping and rates."""

    class Recorded(kind):  # type: ignore[misc, valid-type]
        def homogenized_loss(self, losses: Any, model: Any, **options: Any) -> Tensor:
            self.rows = {name: None if loss is None else gradient(loss, model) for name, loss in losses.items()}
            self.all_rows = [*getattr(self, "all_rows", []), self.rows]
            return super().homogenized_loss(losses, model, **options)

        def training_step(self, model: Any, *args: Any) -> Tensor:
            loss: Tensor = super().training_step(model, *args)
            self.gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            return loss

    return Recorded


def gradient(loss: Tensor, model: Any) -> Tensor:
    found = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
    return torch.cat([part.flatten() for part in found])


def assert_logs_are_equal(found: Any, expected: Any) -> None:
    """Assert that each of TRL's metrics was recorded as often, with the same values."""
    timing = ("time", "second")
    assert len(found.state.log_history) == len(expected.state.log_history)
    for log, own in zip(found.state.log_history, expected.state.log_history, strict=True):
        for name in {name for name in own if not any(part in name for part in timing)}:
            assert log[name] == (None if own[name] is None else pytest.approx(own[name], rel=1e-5, abs=1e-6)), name


TASKS = {"regularizers": "tasks"}
GRPO: dict[str, dict[str, Any]] = {
    "kl, one reward": {"beta": 0.1, "rewards": [low], "tasks": True},
    "kl and entropy as tasks": {"beta": 0.1, "entropy_coef": 0.01, "tasks": True},
    "entropy, accumulated": {"entropy_coef": 0.01, "beta": 0.1, "loss_type": "bnpo", "gradient_accumulation_steps": 2},
    "adaptive entropy, iterations": {
        "use_adaptive_entropy": True, "entropy_target": 3.35, "entropy_coef": 0.05, "num_iterations": 2, "max_steps": 4,
    },
    "batch, weights, steps per generation": {
        "scale_rewards": "batch", "reward_weights": [1.0, 0.3], "loss_type": "grpo", "steps_per_generation": 2,
    },
    "raw, missing": {"scale_rewards": "none", "rewards": [even, sometimes, never], "log_completions": True},
    "normalized, missing": {
        "multi_objective_aggregation": "normalize_then_sum", "rewards": [even, sometimes, low],
        "reward_weights": [1.0, 0.5, 0.0],
    },
    "constant": {"rewards": [constant, never]},
    "evaluated": {"eval_dataset": True, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8},
    "LoRA": {"peft_config": True, "beta": 0.1, "learning_rate": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("name", GRPO)
def test_without_homogenizers_training_is_that_of_grpo(name: str, tmp_path: Path) -> None:
    trainers = []
    for kind, pipe in ((HomogenizedGRPOTrainer, "none"), (GRPOTrainer, None)):
        options = dict(GRPO[name])
        if options.pop("tasks", False) and pipe is not None:
            options["given"] = TASKS
        if options.pop("peft_config", False):
            options["peft_config"] = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
        trainers.append(grpo(kind, tmp_path, homogenizers=pipe, **options))
        if options.get("log_completions"):
            tables = [pd.read_parquet(file) for file in sorted(tmp_path.glob("grpo/completions/*.parquet"))]
            trainers[-1].tables = pd.concat(tables)
    found, expected = trainers
    if name == "constant":
        assert torch.equal(parameters(found.model), parameters(llama()))
    else:
        start = parameters(llama())
        close(found, expected, start if name != "LoRA" else 0 * parameters(found.model))
    assert_logs_are_equal(found, expected)
    if name == "raw, missing":
        pd.testing.assert_frame_equal(found.tables, expected.tables, rtol=1e-6)


def test_a_row_is_the_gradient_with_the_weight_of_its_reward_alone(tmp_path: Path) -> None:
    options = {"scale_rewards": "none", "rewards": [even, low, sometimes], "max_steps": 1}
    regularized = {"beta": 0.5, "entropy_coef": 0.1}
    kind = recorded(HomogenizedGRPOTrainer)
    found = grpo(kind, tmp_path, homogenizers="upgrad", **options, **regularized, given=TASKS)
    assert list(found.rows) == ["even", "low", "sometimes", "kl", "entropy"]
    parent = recorded(GRPOTrainer)
    for index, row in enumerate([found.rows[name] for name in ("even", "low", "sometimes")]):
        weights = [float(index == other) for other in range(3)]
        torch.testing.assert_close(row, grpo(parent, tmp_path, **options, reward_weights=weights).gradient)
    for name, coefficient in (("kl", "beta"), ("entropy", "entropy_coef")):
        only = {coefficient: regularized[coefficient], "reward_weights": [0.0, 0.0, 0.0]}
        expected = grpo(parent, tmp_path, **options, **only).gradient
        torch.testing.assert_close(found.rows[name], expected, rtol=1e-5, atol=1e-7)
    direction = 5 * gradhomog.pipeline("upgrad").combine(torch.stack([*found.rows.values()]))
    torch.testing.assert_close(found.gradient, direction, rtol=1e-5, atol=1e-7)
    assert found.report.names == tuple(found.rows)
    assert {"loss/kl", "weight/low", "cosine/even-low"} <= found.state.log_history[0].keys()
    plain = grpo(kind, tmp_path, homogenizers="upgrad", **options, **regularized)
    assert list(plain.rows) == ["even", "low", "sometimes"]
    direction = 3 * gradhomog.pipeline("upgrad").combine(torch.stack([*plain.rows.values()]))
    expected = direction + found.rows["kl"] + found.rows["entropy"]
    torch.testing.assert_close(plain.gradient, expected, rtol=1e-5, atol=1e-7)


OFF_POLICY: dict[str, dict[str, Any]] = {
    **{name: {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")},
    "sequence": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "entropy mask, off-policy mask": {"top_entropy_quantile": 0.5, "off_policy_mask_threshold": 0.05},
    "ratios of vLLM": {"use_vllm": True, "vllm_importance_sampling_correction": True},
}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer of rewards of opposite sign, whose `batch` has been sampled from a policy that is far away."""
    torch.set_default_dtype(torch.float64)
    kind = recorded(HomogenizedGRPOTrainer)
    found = grpo(kind, tmp_path_factory.mktemp("off"), homogenizers="none", rewards=[even, odd], max_steps=1)
    found.model.train()
    found.batch = dict(found._buffered_inputs[0])
    torch.manual_seed(1)
    shape = found.batch["completion_ids"].shape
    found.batch["old_per_token_logps"] = -math.log(30) + 0.6 * torch.randn(shape)
    found.batch["importance_sampling_ratio"] = torch.rand(shape) + 0.5
    found.batch["tool_mask"] = (torch.rand(shape) < 0.8).long()
    return found


@pytest.mark.parametrize("name", OFF_POLICY)
def test_clipping_and_masks_are_those_of_the_sum_of_advantages(
    name: str, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of TRL is linear in the size of each advantage, which a factor 2 on one of them measures."""
    for attribute, value in OFF_POLICY[name].items():
        monkeypatch.setattr(trainer, attribute, value)

    def of_grpo(advantages: Tensor) -> Tensor:
        batch = {**trainer.batch, "advantages": advantages}
        return gradient(GRPOTrainer.compute_loss(trainer, trainer.model, batch), trainer.model)

    advantages, terms = trainer.batch["advantages"], trainer.batch["advantages_by_reward"]
    torch.testing.assert_close(terms.sum(1), advantages)
    assert (terms[:, 0] * terms[:, 1] < 0).any()
    trainer.compute_loss(trainer.model, trainer.batch)
    base = of_grpo(advantages)
    each = torch.stack([of_grpo(advantages * (1 + (torch.arange(8) == index))) - base for index in range(8)])
    expected = (terms / advantages[:, None]).T @ each
    scale = expected.abs().max()
    for row, own in zip(trainer.rows.values(), expected, strict=True):
        assert (row - own).abs().max() < 1e-5 * scale
    torch.testing.assert_close(sum(trainer.rows.values()), base, rtol=1e-5, atol=1e-5 * float(base.abs().max()))


def test_a_reward_that_does_not_differ_is_absent(tmp_path: Path) -> None:
    options = {"rewards": [low, constant, never], "max_steps": 1, "num_generations": 8}
    found = grpo(HomogenizedGRPOTrainer, tmp_path, homogenizers="mgda", **options)
    assert found.report.names == ("low",)
    close(found, grpo(GRPOTrainer, tmp_path, **options), parameters(llama()))  # of one task
    protected = grpo(HomogenizedGRPOTrainer, tmp_path, homogenizers="pcd(primary='constant')", **options)
    assert protected.report.names == ("low", "constant")
    assert torch.equal(parameters(protected.model), parameters(llama()))  # a primary gradient of zero: no step


def test_a_reward_that_does_not_differ_in_a_batch_is_absent_there(tmp_path: Path) -> None:
    def first(completions: list[str], **_: Any) -> list[float]:  # two of eight differ from the mean of their prompt
        return [0.0, 1.0, *[0.5] * (len(completions) - 2)]

    options = {"rewards": [low, first], "gradient_accumulation_steps": 4, "per_device_train_batch_size": 2}
    found = grpo(recorded(HomogenizedGRPOTrainer), tmp_path, homogenizers="none", max_steps=1, **options)
    assert [row for row in found.all_rows if row["first"] is None]
    assert [row for row in found.all_rows if row["first"] is not None]
    assert all(row["first"] is None or row["first"].any() for row in found.all_rows)


class Clamped(HomogenizedGRPOTrainer):
    """A subclass that changes rewards after the homogenizers have read them."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        return {**output, "advantages": output["advantages"].clamp(min=0)}


class Penalized(HomogenizedGRPOTrainer):
    """A subclass that adds a term to the loss of TRL."""

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        return super()._compute_loss(model, inputs) + next(model.parameters()).square().sum()


@pytest.mark.parametrize(
    ("kind", "message"), [(Clamped, "must be the sums of those of its rewards"), (Penalized, "it differs by")]
)
def test_a_subclass_whose_terms_would_be_lost_is_an_error(kind: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        grpo(kind, tmp_path, homogenizers="none")


def test_with_a_reference_that_is_the_start_plain_regularizers_do_not_stop_equal_norms(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "reference")
    moved = {
        name: float(
            (parameters(grpo(HomogenizedGRPOTrainer, tmp_path, homogenizers="mgda", beta=0.04, given=given).model)
             - parameters(llama())).norm()
        )
        for name, given in (("plain", {}), ("tasks", TASKS))
    }  # fmt: skip
    assert moved["tasks"] < 1e-6 < moved["plain"]


def test_training_continues_from_a_checkpoint(tmp_path: Path) -> None:
    options = {"homogenizers": "tracked(method='upgrad')", "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    whole = grpo(HomogenizedGRPOTrainer, tmp_path, **options)
    resumed = grpo(HomogenizedGRPOTrainer, tmp_path, **options, resume=str(tmp_path / "grpo/checkpoint-2"))
    assert resumed.homogenizers.steps == 3
    assert torch.equal(parameters(resumed.model), parameters(whole.model))


def mixtral(seed: int = 0) -> MixtralForCausalLM:
    torch.manual_seed(seed)
    sizes = {**SIZES, "num_key_value_heads": 2, "num_local_experts": 4}
    return MixtralForCausalLM(MixtralConfig(**SPECIAL, **sizes, output_router_logits=True))


def test_the_loss_of_a_router_is_a_task(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)  # torch has no experts in float64
    start, router = parameters(mixtral()), {"router_aux_loss_coef": 0.2, "gradient_accumulation_steps": 2}
    rewarded = [
        grpo(kind, tmp_path, model=mixtral(), homogenizers=pipe, given=given, **router)
        for kind, pipe, given in ((HomogenizedGRPOTrainer, "none", TASKS), (GRPOTrainer, None, {}))
    ]
    preferring = [
        dpo(kind, tmp_path, {"sigmoid": 1.0, "sft": 0.5}, mixtral, pipe, **router)
        for kind, pipe in ((HomogenizedDPOTrainer, "none"), (DPOTrainer, None))
    ]
    for found, expected in (rewarded, preferring):
        close(found, expected, start)
        assert_logs_are_equal(found, expected)
        assert found.report.names[-1] == "router"


DPO: dict[str, dict[str, Any]] = {
    "accumulated": {"losses": MPO, "gradient_accumulation_steps": 2},
    "evaluated": {"losses": MPO, "eval_strategy": "steps", "eval_steps": 1},
    "all": {
        "losses": {
            "sigmoid": 1.0, "hinge": 0.5, "ipo": 0.1, "exo_pair": 1.0, "nca_pair": 0.4, "robust": 0.3, "bco_pair": 1.0,
            "sppo_hard": 0.2, "aot": 1.0, "aot_unpaired": 0.6, "apo_zero": 1.0, "apo_down": 0.7, "discopop": 1.0,
            "sft": 0.8, "sigmoid_norm": 1.0,
        },
        "label_smoothing": 0.1, "learning_rate": 0.01,
    },
    "reference in advance": {"losses": MPO, "precompute_ref_log_probs": True, "ld_alpha": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("name", DPO)
def test_without_homogenizers_training_is_that_of_dpo(name: str, tmp_path: Path) -> None:
    found = dpo(HomogenizedDPOTrainer, tmp_path, homogenizers="none", **DPO[name])
    expected = dpo(DPOTrainer, tmp_path, **DPO[name])
    close(found, expected, parameters(llama()))
    assert_logs_are_equal(found, expected)
    if name == "evaluated":
        log = found.state.log_history[1]
        assert sum(log[f"eval_{task}_loss"] for task in MPO) == pytest.approx(log["eval_loss"], rel=1e-6)


def test_a_row_is_the_gradient_of_one_loss(tmp_path: Path) -> None:
    found = dpo(recorded(HomogenizedDPOTrainer), tmp_path, MPO, homogenizers="upgrad", max_steps=1)
    for name, weight in MPO.items():
        expected = dpo(recorded(DPOTrainer), tmp_path, {name: weight}, max_steps=1).gradient
        torch.testing.assert_close(found.rows[name], expected, rtol=1e-5, atol=1e-7)
    direction = 3 * gradhomog.pipeline("upgrad").combine(torch.stack([*found.rows.values()]))
    torch.testing.assert_close(found.gradient, direction, rtol=1e-5, atol=1e-7)


def test_a_window_of_batches_is_one_large_batch(tmp_path: Path) -> None:
    windowed = {"given": {"window": True}, "homogenizers": "upgrad", "gradient_accumulation_steps": 2}
    for options in ({"loss_type": "grpo"}, {"loss_type": "dapo", "beta": 0.1}):
        found = grpo(HomogenizedGRPOTrainer, tmp_path, per_device_train_batch_size=4, **windowed, **options)
        close(found, grpo(HomogenizedGRPOTrainer, tmp_path, homogenizers="upgrad", **options), parameters(llama()))
    found = dpo(HomogenizedDPOTrainer, tmp_path, MPO, per_device_train_batch_size=2, **windowed)
    close(found, dpo(HomogenizedDPOTrainer, tmp_path, MPO, homogenizers="upgrad"), parameters(llama()))
    assert found.homogenizers.steps == 2


class MixtureOfSources(HomogenizedTrainer, SFTTrainer):
    """Supervised fine-tuning whose tasks are the sources of a mixed batch."""


def sft(kind: Any, folder: Path, text: str | None = None, window: bool = False, **options: Any) -> Any:
    """Train on sentences of 4 or 6 words of three sources, two of which occur equally often in every six examples."""
    sizes = {"per_device_train_batch_size": 6, "max_length": 16, "train_sampling_strategy": "sequential"}
    args = SFTConfig(str(folder / "sft"), **{**QUIET, **TRAINING, **sizes, **options})
    rows = [
        {"text": " ".join(WORDS[index % 5 : index % 5 + 4 + index % 2 * 2]), "source": "abc"[index % 6 // 2]}
        for index in range(24)
    ]
    given = {} if text is None else {"homogenizers": gradhomog.pipeline(text), "group_column": "source"}
    given |= {"window": True} if window else {}
    data = Dataset.from_list(rows)
    trainer = kind(llama(), args=args, train_dataset=data, eval_dataset=data, processing_class=tokenizer(), **given)
    trainer.train()
    return trainer


def test_groups_of_equal_size_train_and_log_as_the_trainer_of_trl(tmp_path: Path) -> None:
    plain, found = sft(SFTTrainer, tmp_path), sft(MixtureOfSources, tmp_path, "none")
    close(parameters(found.model), parameters(plain.model), parameters(llama()))
    log, expected = found.state.log_history[0], plain.state.log_history[0]
    names = ("loss", "entropy", "mean_token_accuracy", "num_tokens", "grad_norm")
    assert {name: log[name] for name in names} == pytest.approx({name: expected[name] for name in names}, rel=1e-5)
    assert sum(log[f"loss/{source}"] for source in "abc") / 3 == pytest.approx(log["loss"], rel=1e-6)
    metrics, expected = found.evaluate(), plain.evaluate()
    assert metrics["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-6)
    assert sum(metrics[f"eval_{source}_loss"] for source in "abc") / 3 == pytest.approx(metrics["eval_loss"], rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"loss_type": "dft"}, {"label_smoothing_factor": 0.1}], ids=str)
def test_a_window_over_examples_of_several_sources_is_one_large_batch(options: dict[str, Any], tmp_path: Path) -> None:
    large = sft(MixtureOfSources, tmp_path, NORMALIZED, **options)
    small = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 6, **options}
    found = sft(MixtureOfSources, tmp_path, NORMALIZED, window=True, **small)
    close(parameters(found.model), parameters(large.model), parameters(llama()))


def test_a_mixture_that_is_packed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"got 'source'. Packing removes columns: SFTConfig\(packing=False\)"):
        sft(MixtureOfSources, tmp_path, "none", packing=True)


def test_tasks_that_cannot_be_homogenized_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"at least two tasks; got \['low'\]"):
        grpo(HomogenizedGRPOTrainer, tmp_path, homogenizers="none", rewards=[low])
    with pytest.raises(OptionError, match=r"different names; got \['low', 'low'\]. Set `__name__`"):
        grpo(HomogenizedGRPOTrainer, tmp_path, homogenizers="none", rewards=[low, low])
    with pytest.raises(OptionError, match=r"at least two tasks; got \['sft'\]"):  # of weight 0 is no task
        dpo(HomogenizedDPOTrainer, tmp_path, {"sft": 1.0, "sigmoid": 0.0}, homogenizers="none")
    with pytest.raises(OptionError, match="`regularizers` must be 'plain' or 'tasks'; got 'task'"):
        grpo(HomogenizedGRPOTrainer, tmp_path, homogenizers="none", given={"regularizers": "task"})
    with pytest.raises(OptionError, match="`group_column` must be None for a HomogenizedGRPOTrainer"):
        grpo(HomogenizedGRPOTrainer, tmp_path, homogenizers="none", given={"group_column": "source"})
    # TRL constructs the context on accelerators only.
    monkeypatch.setattr("trl.trainer.dpo_trainer.get_act_offloading_ctx_manager", lambda **_: None)
    with pytest.raises(OptionError, match="`activation_offloading` must be False"):
        dpo(HomogenizedDPOTrainer, tmp_path, MPO, homogenizers="none", activation_offloading=True)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """Trainings in two processes, because rewards are gathered over processes, and each has a part of them."""
    return on_two_ranks("trl_on_ranks", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", ["grpo", "dpo"])
def test_without_homogenizers_two_processes_train_as_those_of_trl(name: str, ranks: Any) -> None:
    first, second = ranks
    close(first[name, "none"], first[name, None], first[name, "start"])
    assert torch.equal(first[name, NORMALIZED], second[name, NORMALIZED])
    assert not torch.allclose(first[name, NORMALIZED], first[name, "none"])


def test_two_processes_train_as_one_with_the_whole_batch(ranks: Any, tmp_path: Path) -> None:
    one = dpo(HomogenizedDPOTrainer, tmp_path, MPO, homogenizers=NORMALIZED, per_device_train_batch_size=8)
    close(ranks[0]["dpo", NORMALIZED], one, parameters(llama()))


def test_the_rewards_of_a_process_are_those_of_its_completions(ranks: Any) -> None:
    for rank in ranks:
        torch.testing.assert_close(rank["terms"].sum(1), rank["advantages"])
