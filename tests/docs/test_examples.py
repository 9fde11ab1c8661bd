"""Scripts in `docs/examples` run and print losses, weights, scores and errors; they resume, and train on ranks."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

from tests.docs import pages
from tests.docs.pages import DOCS
from tests.docs.scripts import printed

EXAMPLES = pages.DOCS / "examples"


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Frameworks write to the working folder and set defaults of the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "DDE_BACKEND", "pytorch")
    yield
    torch.set_default_device(None)  # DeepXDE sets CUDA where there is a GPU


LIGHTNING = [
    rf"(?m)^{kind}/{task}: {value}$"
    for kind, value in (("loss", r"\S+"), ("nmse", r"[01]\.\d+"), ("weight", r"\S+"))
    for task in ("temperature", "humidity")
]
BERT = ["loss/parity", "weight/total", "cosine/parity-total", "eval_parity_loss", "eval_total_loss"]
SCRIPTS: dict[str, tuple[str, str, list[str]]] = {
    "lightning_multitask": ("lightning.pytorch", "aligned_mtl --epochs 1", [*LIGHTNING, r"(?m)^cosine/min: \S+$"]),
    "torch_rechub_multitask": (
        "torch_rechub", "upgrad --epochs 3 --points 8000",  # chance is 0.5
        [r"AUC/click: 0\.(5[5-9]|[6-9])", r"AUC/conversion: 0\.[7-9]"],
    ),
    "transformers_multitask": (
        "transformers", "upgrad --steps 50", [rf"'{name}': '-?\d" for name in BERT],
    ),
    "sentence_transformers_datasets": (
        "sentence_transformers", "--steps 2", [rf"'eval_{name}_loss': '-?\d" for name in ("answers", "scores")],
    ),
    "sentence_transformers_components": (
        "sentence_transformers", "--steps 50", [rf"'loss/first {size}': '\d" for size in (16, 8, 4)],
    ),
    "grpo_two_rewards": (
        "trl", "upgrad --steps 20", [rf"'{name}': '-?\d" for name in ("rewards/short/mean", "cosine/covers-short")],
    ),
    "forget_retain": (  # the sum at this weight ends with a retain loss of 11
        "transformers", "auto ga nll 30", [r"(?m)^forget: 0\.\d+ to 1\d\.", r"(?m)^retain: 0\.\d+ to [01]\."],
    ),
    "lora_cost": ("peft", "1 32", [rf"(?m)^{name} +time \d+\.\d+  memory \d\.\d+$" for name in ("auto", "upgrad")]),
    "deepxde_burgers": (
        "deepxde", "upgrad --iterations 3 --lbfgs 2 --points 64",
        [r"weights: {'pde': \d.*'DirichletBC': \d.*'IC': \d", r"mean residual: \d"],
    ),
    "deepxde_helmholtz": ("deepxde", "uw --iterations 2 --width 5", [r"relative L2 error: \d"]),
    "deepxde_helmholtz, rows replaced": ("deepxde", "trimmed_mean --iterations 2 --width 5", ["weights: {}"]),
    "interatomic_potential": (
        "torch", "--steps 2 --seeds 0 1 --rates 0.03 --methods none auto",
        [r"chosen: \w+; lowest test errors of the grid: \[\d", r"(?m)^\| auto \|( -?\d\S+ ± \d\S+ \|){5}.* \| \S+ ms"],
    ),
    "pinn_gauss_newton": ("torch", "--steps 3", [r"loss: \d", r"relative L2 error: \d"]),
    "pina_poisson": (
        "pina", "upgrad --epochs 2", [r"weights: {'boundary': \d.*'D': \d", r"relative L2 error: \d"],
    ),
}  # fmt: skip
"""Package, arguments and patterns of the output of each script."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # advice and deprecations within frameworks
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_with_a_framework_prints_its_results(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    package, arguments, patterns = SCRIPTS[name]
    framework = pytest.importorskip(package, reason="needs an extra")
    if package == "deepxde":
        framework.optimizers.set_LBFGS_options()
    text = printed(EXAMPLES / f"{name.partition(',')[0]}.py", capsys, *arguments.split())
    if package == "deepxde":
        framework.optimizers.LBFGS_options["iter_per_step"] = 1000
    for pattern in patterns:
        assert re.search(pattern, text), pattern


@pytest.mark.slow
def test_the_embedding_model_is_trained_on_two_tasks_and_a_table_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs an extra")
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    folder = str(tmp_path / "model")
    transformers.BertTokenizer({word: index for index, word in enumerate(words)}).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    data = ["--packages", "gradhomog", "gradhomog_plugins", "--functions", "20"]
    options = ["--model", folder, "--layers", "1", *data, "--steps", "2", "--out", str(tmp_path / "rows.jsonl")]

    def run(*methods: str, seeds: str = "0 1", rate: str = "1e-4") -> str:
        arguments = [*options, "--rate", rate, "--seeds", *seeds.split(), "--methods", *methods]
        return printed(EXAMPLES / "embedding_model.py", capsys, *arguments)

    assert "'train': 28, 'validation': 4, 'test': 8" in run("sum 1")
    text = run("sum 1", "auto")
    assert text.count("'seconds'") == 2  # `auto` with two seeds
    assert re.search(r"(?m)^\| sum 1 \(tuned\) \|( \d+\.\d ± \d+\.\d \|){3} 0\.0 ± 0\.0 \|$", text)
    assert re.search(r"(?m)^\| auto \|( \d+\.\d ± \d+\.\d \|){3} -?\d+\.\d ± \d+\.\d \|$", text)
    text = run("auto", seeds="0", rate="1e-2")  # another run, without a sum to compare with
    assert text.count("'seconds'") == 1
    assert "| sum 1" not in text
    assert re.search(r"(?m)^\| auto \|( \d+\.\d \|){3} – \|$", text)


@pytest.fixture
def characters(tmp_path: Path) -> str:
    """Eight training and eight test characters, four images of each."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 4)
    images = random.integers(0, 256, (16, 28, 28, 1), dtype=np.uint8)[labels]
    path = tmp_path / "characters.npz"
    np.savez(path, images=images, labels=labels, class_split=np.array(["train", "test"] * 8))
    return str(path)


def test_training_characters_occur_in_four_rotations_and_test_characters_in_none_of_them(characters: str) -> None:
    train, test = runpy.run_path(str(EXAMPLES / "omniglot.py"), run_name="script")["datasets"](characters)
    images, classes = train.tensors
    assert len(classes.unique()) == 4 * 8
    assert len(test.tensors[1].unique()) == 8
    assert not set(classes.tolist()) & set(test.tensors[1].tolist())
    upright, turned = images[classes == 0], images[classes == 16]
    assert torch.equal(upright.rot90(1, (2, 3)), turned)


def test_omniglot_prints_accuracies_after_some_steps_and_at_the_end(characters: str, capsys: Any) -> None:
    arguments = ["fomaml", "--steps", "2", "--every", "1", "--test-tasks", "6"]
    text = printed(EXAMPLES / "omniglot.py", capsys, characters, *arguments)
    lines = re.findall(r"^ +(\d+) +\d+\.\d +\d+\.\d +\d+\.\d ± \d+\.\d$", text, re.MULTILINE)
    assert lines == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["maml", "fomaml"])
def test_sinusoid_prints_the_error_after_each_number_of_inner_steps(learner: str, capsys: Any) -> None:
    text = printed(EXAMPLES / "sinusoid.py", capsys, learner, "--steps", "150", "--test-tasks", "40")
    found = re.findall(r"^ +(\d+)   (\d+\.\d+) ± \d+\.\d+$", text, re.MULTILINE)
    assert [steps for steps, _ in found] == ["0", "1", "2", "3", "5", "10"]
    assert float(found[1][1]) < float(found[0][1])  # one inner step helps after 150 meta-steps


@pytest.mark.filterwarnings("ignore:.*functorch:FutureWarning")
def test_imaml_by_torchopts_solver_agrees_on_a_well_conditioned_problem() -> None:
    example = runpy.run_path(str(EXAMPLES / "imaml_custom_root.py"))
    ours, theirs = example["rows"](example["IMAML"]), example["rows"](example["CustomRootIMAML"])
    for name, row in ours.items():
        torch.testing.assert_close(theirs[name], row, rtol=1e-8, atol=1e-11)


SCRIPT = pages.DOCS / "examples" / "complete_loop.py"


@pytest.mark.slow_after_first
@pytest.mark.parametrize("method", ["gradnorm", "pcgrad(seed=1)"])
def test_a_run_that_is_interrupted_and_resumed_equals_an_uninterrupted_one(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *options: str) -> list[dict[str, Any]]:
        text = printed(SCRIPT, capsys, method, "--steps", "30", "--checkpoint", str(tmp_path / name), *options)
        return [json.loads(line) for line in text.splitlines()]

    whole = run("whole.pt")
    assert [row["step"] for row in run("resumed.pt", "--stop", "13")] == list(range(13))
    assert run("resumed.pt") == whole[10:]  # from the last checkpoint
    resumed, expected = (
        tree_flatten(torch.load(tmp_path / f"{name}.pt", weights_only=True)) for name in ("resumed", "whole")
    )
    assert resumed[1] == expected[1]  # names
    for found, value in zip(resumed[0], expected[0], strict=True):
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value


def test_the_loop_has_batches_and_parts_without_labels_and_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(SCRIPT, capsys, "upgrad", "--checkpoint", str(tmp_path / "run.pt"), "--steps", "60")
    rows = [json.loads(line) for line in text.splitlines()]
    absent = [row for row in rows if "loss/dose" not in row]
    assert 0 < len(absent) < len(rows)
    assert all("weight/age" in row and "cosine/age-weight" in row for row in rows)
    means = [sum(row["loss/weight"] for row in part) / len(part) for part in (rows[:10], rows[-10:])]
    assert means[1] < 0.7 * means[0]


def printed_by_two_ranks(script: str, *arguments: str) -> str:
    """Return the output of the script, started by torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, str(DOCS / "examples" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split() if word.replace(".", "").replace("-", "").isdigit()]


@pytest.mark.slow
def test_a_run_of_two_ranks_that_one_process_continues_equals_a_run_of_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = ["--checkpoint", str(tmp_path / "run.pt")]
    printed_by_two_ranks("ddp_multitask.py", "gradnorm", "--epochs", "2", *checkpoint)
    script = DOCS / "examples" / "ddp_multitask.py"
    continued = numbers(printed(script, capsys, "gradnorm", "--epochs", "3", *checkpoint))
    expected = numbers(printed(script, capsys, "gradnorm", "--epochs", "3"))
    assert len(expected) == 3
    assert continued == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_a_model_that_is_split_over_two_ranks_is_trained_as_on_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    one = numbers(printed(DOCS / "examples" / "fsdp2_multitask.py", capsys, "upgrad", "--steps", "20"))
    two = numbers(printed_by_two_ranks("fsdp2_multitask.py", "upgrad", "--steps", "20"))
    assert len(one) == 2
    assert two == pytest.approx(one, abs=1e-3)
