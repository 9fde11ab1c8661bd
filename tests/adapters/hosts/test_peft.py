"""Adapters of PEFT: rows are those by hand, of one adapter and of one beside an adapter per task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog

pytest.importorskip("peft", reason="needs PEFT")

from peft import LoraConfig, PeftModel, get_peft_model
from transformers import OPTConfig, OPTForCausalLM, TrainingArguments

from gradhomog_adapters.transformers import HomogenizedTrainer  # isort: skip

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations within the packages
TASKS = ("first", "second")
SCALE = 2.0  # lora_alpha / r


def base() -> OPTForCausalLM:
    """A model without operations in float32, such as the normalization of Llama."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "word_embed_proj_dim": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = OPTConfig(vocab_size=16, ffn_dim=16, max_position_embeddings=8, dropout=0.0, **sizes)
    return OPTForCausalLM(config).double()


def adapted(*adapters: str) -> Any:
    """A model with these adapters, none of which is zero, all trainable."""
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(base(), config, adapter_name=adapters[0])
    for name in adapters[1:]:
        model.add_adapter(name, config)
    model.set_requires_grad([*adapters])
    return model.double()


def texts() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {task: torch.randint(16, (3, 5), generator=generator) for task in TASKS}


def loss_of(model: Any, task: str) -> Tensor:
    """The mean over tokens, of the second task a hundred times as large."""
    x = texts()[task]
    logits = model(input_ids=x).logits[:, :-1].transpose(1, 2)
    return (1 if task == "first" else 100) * nn.functional.cross_entropy(logits, x[:, 1:])


def losses_of(model: Any, per_task: bool) -> dict[str, Tensor]:
    found = {}
    for task in TASKS:
        if per_task:
            model.base_model.set_adapter(["shared", task])
        found[task] = loss_of(model, task)
    model.set_requires_grad([*model.peft_config])  # `set_adapter` freezes the inactive ones
    return found


def matrices(model: Any, adapter: str) -> dict[str, tuple[nn.Parameter, nn.Parameter]]:
    """A and B of each layer, by the name of its weight in the model without adapters."""
    layers = {name: layer for name, layer in model.get_base_model().named_modules() if hasattr(layer, "lora_A")}
    return {f"{n}.weight": (layer.lora_A[adapter].weight, layer.lora_B[adapter].weight) for n, layer in layers.items()}


def gradients_by_hand(model: Any, active: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, list[Tensor]]]:
    """For each task and active adapter ∂L/∂A = s Bᵀ G and ∂L/∂B = s G Aᵀ, G the gradient of W + s Σ B A."""
    found: dict[str, dict[str, list[Tensor]]] = {}
    for task in TASKS:
        merged = base()
        for adapter in active[task]:
            for name, (a, b) in matrices(model, adapter).items():
                merged.get_parameter(name).data += SCALE * b.detach() @ a.detach()
        loss_of(merged, task).backward()
        found[task] = {}
        for adapter in active[task]:
            parts = found[task].setdefault(adapter, [])
            for name, (a, b) in matrices(model, adapter).items():
                gradient = SCALE * merged.get_parameter(name).grad
                parts += [b.detach().T @ gradient, gradient @ a.detach().T]
    return found


def assert_gradients(model: Any, adapter: str, expected: Tensor) -> None:
    found = [p.grad.flatten() for pair in matrices(model, adapter).values() for p in pair]
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-9, atol=1e-11)


def assert_one_is_shared(model: Any) -> None:
    """The shared adapter has the direction of its rows, and each other one the gradient of its task."""
    by_hand = gradients_by_hand(model, {task: ("shared", task) for task in TASKS})
    rows = torch.stack([flat(by_hand[task]["shared"]) for task in TASKS])
    assert_gradients(model, "shared", gradhomog.pipeline("upgrad").combine(rows))
    for task in TASKS:
        assert_gradients(model, task, flat(by_hand[task][task]))


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def test_the_rows_of_one_adapter_are_those_by_hand() -> None:
    model = adapted("shared")
    gradhomog.backward(losses_of(model, per_task=False), gradhomog.pipeline("upgrad"), parameters=model)
    by_hand = gradients_by_hand(model, dict.fromkeys(TASKS, ("shared",)))
    rows = torch.stack([flat(by_hand[task]["shared"]) for task in TASKS])
    assert_gradients(model, "shared", gradhomog.pipeline("upgrad").combine(rows))
    assert all(p.grad is None for name, p in model.named_parameters() if "lora" not in name)


def test_rows_that_are_added_task_by_task_allow_checkpoints_of_the_forward_pass() -> None:
    """Recomputed layers have the adapters of the last task, so a loss is differentiated before the next one."""
    model = adapted("shared", *TASKS)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    shared = [(name, p) for name, p in model.named_parameters() if ".shared." in name]
    with gradhomog.accumulated(gradhomog.pipeline("upgrad"), parameters=shared) as several:
        for task in TASKS:
            model.base_model.set_adapter(["shared", task])
            several.add({task: loss_of(model, task)})
    assert_one_is_shared(model)


def test_one_adapter_is_shared_beside_one_per_task_and_training_continues_from_saved_adapters(tmp_path: Path) -> None:
    model = adapted("shared", *TASKS)
    gradhomog.backward(losses_of(model, per_task=True), gradhomog.pipeline("upgrad"))  # by default the shared ones
    assert_one_is_shared(model)

    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(base(), tmp_path / "shared", adapter_name="shared", is_trainable=True)
    for task in TASKS:
        loaded.load_adapter(tmp_path / task, adapter_name=task, is_trainable=True)
    gradhomog.backward(losses_of(loaded.double(), per_task=True), gradhomog.pipeline("upgrad"))
    assert_one_is_shared(loaded)


class SharedAdapter(HomogenizedTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return self.homogenized_loss(losses_of(model, per_task=True), model)

    def shared_parameters(self, model: nn.Module) -> Any:
        return [(name, p) for name, p in model.named_parameters() if ".shared." in name]


def test_a_trainer_homogenizes_the_shared_adapter_alone(tmp_path: Path) -> None:
    model, before = adapted("shared", *TASKS), adapted("shared", *TASKS)
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "max_grad_norm": 0.0}
    args = TrainingArguments(str(tmp_path), max_steps=1, optim="sgd", learning_rate=0.01, **quiet)
    data, pipe = [{"input_ids": torch.zeros(1, dtype=torch.long)}], gradhomog.pipeline("upgrad")
    SharedAdapter(model, args, train_dataset=data, homogenizers=pipe).train()
    gradhomog.backward(losses_of(before, per_task=True), gradhomog.pipeline("upgrad"))
    for adapter, rows in {"shared": 2, **dict.fromkeys(TASKS, 1)}.items():  # the direction is the sum of the rows
        pairs = zip(matrices(model, adapter).values(), matrices(before, adapter).values(), strict=True)
        for found, start in ((f, s) for ours, theirs in pairs for f, s in zip(ours, theirs, strict=True)):
            torch.testing.assert_close(found, start - 0.01 * rows * start.grad, rtol=1e-9, atol=1e-11)
