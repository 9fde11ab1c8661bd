"""`HomogenizedTrainer` and Accelerate in two processes: "none" is DDP, others train as one with the whole batch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gradhomog
from gradhomog import OptionError

from .language_models import mixture, trained_on_mixture
from .measures import parameters
from .transformers_models import Groups, TwoTasks, examples, trained
from .transformers_on_ranks import (
    CASES,
    DATASETS,
    RESUMED,
    SOME_LABELS,
    TRACKED,
    WINDOWS,
    PerItem,
    SomeLabels,
    accelerated,
)

from accelerate.state import AcceleratorState, GradientState  # isort: skip
from accelerate.utils import DistributedType, ParallelismConfig  # isort: skip
from gradhomog_adapters.transformers import ranks_of_accelerator  # isort: skip

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations within Transformers and PyTorch


def in_one_process(folder: Path, kind: Any = TwoTasks, text: str = "upgrad", **options: Any) -> Any:
    """Train with batches of eight, which are those of two processes together."""
    options = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 16, **options}
    return trained(kind, folder, homogenizers=gradhomog.pipeline(text), **options)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_without_homogenizers_training_is_that_of_ddp(name: str, ranks: Any) -> None:
    close(ranks[0][name, "none"], ranks[0][name, None])


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_one_process_with_the_whole_batch(name: str, ranks: Any, tmp_path: Path) -> None:
    kind, options = CASES[name]
    close(ranks[0][name, "upgrad"], parameters(in_one_process(tmp_path, kind, **options).model))
    assert not torch.allclose(ranks[0][name, "upgrad"], ranks[0][name, "none"], rtol=1e-5)


@pytest.mark.parametrize("name", [*((name, "upgrad") for name in CASES), "per item"], ids=str)
def test_all_processes_have_the_same_parameters(name: Any, ranks: Any) -> None:
    assert torch.equal(ranks[0][name], ranks[1][name])


def test_logs_and_evaluations_are_those_of_the_whole_batch(ranks: Any, tmp_path: Path) -> None:
    expected = in_one_process(tmp_path, eval_dataset=examples(8), eval_strategy="steps").state.log_history
    for rank in ranks:
        for found, log in zip(rank["logs"], expected, strict=True):
            names = {name for name in log if any(word in name for word in ("loss", "weight", "cosine", "grad_norm"))}
            assert {name: found[name] for name in names} == pytest.approx({n: log[n] for n in names}, rel=1e-6)
    assert "eval_topic_loss" in ranks[0]["logs"][1]


def test_examples_by_task_weigh_rows_logs_and_evaluations(ranks: Any, tmp_path: Path) -> None:
    expected = in_one_process(tmp_path, Groups, eval_dataset=examples(16), eval_strategy="steps")
    for rank in ranks:
        close(rank["groups"], parameters(expected.model))
        for found, log in zip(rank["logs of groups"], expected.state.log_history, strict=True):
            names = {name for name in log if "group" in name}
            assert {name: found[name] for name in names} == pytest.approx({n: log[n] for n in names}, rel=1e-6)


@pytest.mark.parametrize("unused", [False, True])
def test_heads_without_labels_on_some_processes_train_in_a_window_as_in_one(
    unused: bool, ranks: Any, tmp_path: Path
) -> None:
    expected = in_one_process(tmp_path, SomeLabels, **SOME_LABELS)
    for rank in ranks:
        close(rank["heads", unused], parameters(expected.model))


@pytest.mark.parametrize("name", WINDOWS)
def test_groups_of_two_processes_train_and_log_as_those_of_one(name: str, ranks: Any, tmp_path: Path) -> None:
    options = {"eval_dataset": mixture(16), "eval_strategy": "steps", "max_steps": 3}
    expected = trained_on_mixture(tmp_path, "upgrad", per_device_train_batch_size=8, **options)
    for rank in ranks:
        close(rank["mixture", name], parameters(expected.model))
        for found, log in zip(rank["logs of mixture", name], expected.state.log_history, strict=True):
            names = {name for name in log if any(word in name for word in ("/", "code", "law", "wiki"))}
            assert {name: found[name] for name in names} == pytest.approx({n: log[n] for n in names}, rel=1e-6)


def test_sums_divided_by_the_items_of_all_processes(ranks: Any, tmp_path: Path) -> None:
    found = in_one_process(tmp_path, PerItem, missing=6, gradient_accumulation_steps=2)
    close(ranks[0]["per item"], parameters(found.model))


def test_one_process_resumes_a_checkpoint_of_two(ranks: Any, folder: Path) -> None:
    options = {**RESUMED, "save_strategy": "no", "resume": str(folder / "checkpoint-1")}
    resumed = in_one_process(folder, text="tracked(method='upgrad')", **options)
    assert resumed.homogenizers.steps == ranks[0]["state"]["steps"] == 2
    close(parameters(resumed.model), ranks[0]["resumable"])


def test_a_loop_of_accelerate_is_that_of_one_process(ranks: Any) -> None:
    AcceleratorState._reset_state(True)  # a second Accelerator would ignore its options
    GradientState._reset_state()
    expected = accelerated("aligned_mtl", batch_size=8)
    for rank in ranks:
        found = rank["accelerate"]
        close(found["none"], found[None])
        close(found["aligned_mtl"], expected)
        assert not torch.allclose(found["aligned_mtl"], found["none"], rtol=1e-3)
    assert torch.equal(*(rank["accelerate"]["aligned_mtl"] for rank in ranks))


def test_weights_from_the_mean_losses_of_all_processes_are_those_of_gradhomog_loss(ranks: Any) -> None:
    for rank in ranks:
        close(rank["accelerate"]["weights from losses"], rank["accelerate"]["uw"])
        assert not torch.allclose(rank["accelerate"]["uw"], rank["accelerate"]["none"], rtol=1e-3)


def test_a_hook_that_sends_nothing_does_not_change_the_training(ranks: Any) -> None:
    for rank in ranks:
        close(rank["noop hook"], ranks[0]["sgd", "upgrad"])
        close(rank["accelerate"]["noop hook"], ranks[0]["accelerate"]["aligned_mtl"])


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("not finite on rank 1", "NonfiniteError: task 1 of domain topic is not finite"),
        ("reads rows", "OptionError: graddrop reads rows, which are distributed over 2 ranks"),
    ],
)
def test_an_error_is_raised_in_all_processes(name: str, start: str, ranks: Any) -> None:
    for rank in ranks:
        assert rank["errors"][name].startswith(start)


@pytest.mark.parametrize("name", DATASETS)
def test_with_other_datasets_in_each_process_none_is_the_trainer_of_sentence_transformers(
    name: str, ranks: Any
) -> None:
    of_one = pytest.importorskip("tests.adapters.hosts.test_sentence_transformers")
    for rank in ranks:
        (found, logs), (expected, expected_logs) = (rank["datasets", name, text] for text in ("none", None))
        close(found, expected)
        assert not torch.allclose(found, parameters(of_one.model()))
        assert len(logs) > 0
        assert torch.tensor(logs[: len(expected_logs)]).allclose(torch.tensor(expected_logs))


def test_a_step_with_other_datasets_in_each_process_is_that_of_their_gradients(ranks: Any, tmp_path: Path) -> None:
    of_one = pytest.importorskip("tests.adapters.hosts.test_sentence_transformers")
    gradients = torch.stack(of_one.rows(2, tmp_path))
    for rank in ranks:
        for text, method in {"upgrad": "upgrad", TRACKED: "aligned_mtl", "uw": "none"}.items():
            direction, log = rank["datasets", text]
            expected = gradhomog.pipeline(method).combine(gradients)
            if method == "none":
                losses = torch.tensor([log["loss/close"], log["loss/same"]])
                expected = gradhomog.pipeline(text).combine(gradients, losses)
            torch.testing.assert_close(direction, expected, rtol=1e-4, atol=1e-6)


def test_components_in_two_processes(ranks: Any) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra `sentence-transformers`")
    found = ranks[0]["components"]
    close(found["none"], found[None])
    assert torch.equal(found["upgrad"], ranks[1]["components"]["upgrad"])
    assert not torch.allclose(found["upgrad"], found["none"], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("one at a time", "OptionError: in 2 processes a step has batches of up to 2 datasets, of which tracked would"),
        ("classifier", "OptionError: in several processes, losses of several datasets must have no parameters"),
    ],
)
def test_what_processes_with_other_datasets_cannot_do_is_refused(name: str, start: str, ranks: Any) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra `sentence-transformers`")
    for rank in ranks:
        assert rank["errors of datasets"][name].startswith(start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distributed_type": DistributedType.FSDP}, "got FSDP .processes: 2"),
        ({"distributed_type": DistributedType.FSDP, "num_processes": 1}, "got FSDP .processes: 1"),
        ({"distributed_type": DistributedType.DEEPSPEED}, "got DEEPSPEED .processes: 2"),
        ({"distributed_type": DistributedType.DEEPSPEED, "num_processes": 1}, "got DEEPSPEED .processes: 1"),
        ({"distributed_type": DistributedType.MEGATRON_LM, "num_processes": 1}, "got MEGATRON_LM .processes: 1"),
        ({"distributed_type": DistributedType.XLA}, "got XLA .processes: 2"),
        ({"parallelism_config": ParallelismConfig(tp_size=2)}, "got tp .processes: 2"),
    ],
)
def test_distributed_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    replicated = {"num_processes": 2, "distributed_type": DistributedType.MULTI_CPU, "parallelism_config": None}
    with pytest.raises(OptionError, match=rf"{message}.*weights from losses"):
        ranks_of_accelerator(SimpleNamespace(**replicated | options))
    with pytest.raises(OptionError, match=r"got tensor parallelism .processes: 2"):
        ranks_of_accelerator(SimpleNamespace(**replicated), tensor_parallel=2)
    assert ranks_of_accelerator(SimpleNamespace(**replicated)) == gradhomog.Ranks("batch")
    alone = {"num_processes": 1, "distributed_type": DistributedType.XLA}
    assert ranks_of_accelerator(SimpleNamespace(**replicated | alone)) is None
