"""Trainings with Transformers and Accelerate in two processes, for `test_transformers_on_ranks.py`; for torchrun."""

import gc
import importlib.util
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from transformers import TrainerCallback

import gradhomog
from gradhomog import Ranks
from tests.docs import pages

from .language_models import mixture, trained_on_mixture
from .measures import parameters
from .torchrun import error_of, save
from .transformers_models import Groups, SumTrainer, TwoTasks, examples, trained, two_losses

RANK = int(os.environ.get("RANK", 0))


class EncoderOnly(TwoTasks):
    """Heads receive the unweighted gradient of their loss."""

    def shared_parameters(self, model: nn.Module) -> Any:
        return self.model.encoder


class PerItem(TwoTasks):
    """Sums divided by the number of labels of all accumulated batches of all processes."""

    loss_is_scaled_for_ga = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        losses = two_losses(model(**inputs), inputs, reduction="sum")
        factor = self.accelerator.num_processes / num_items_in_batch
        return self.homogenized_loss({name: factor * loss for name, loss in losses.items()}, model)


class Gathered(TwoTasks):
    """All rows on every rank, for methods that read rows."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        losses = two_losses(model(**inputs), inputs)
        return self.homogenized_loss(losses, model, group=Ranks("batch", gather=True))


class Hooked(TwoTasks):
    """Omit the exchange of the wrapper."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        trainer = self

        class NoopHook(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                trainer.model_wrapped.register_comm_hook(None, noop_hook)

        self.add_callback(NoopHook())


class NotFinite(TwoTasks):
    """A loss is infinite on one rank."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        losses = two_losses(model(**inputs), inputs)
        return self.homogenized_loss({**losses, "topic": losses["topic"] * (torch.inf if RANK else 1)}, model)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (TwoTasks, {}),
    "accumulated and clipped": (
        TwoTasks, {"optim": "adamw_torch", "gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "max_steps": 2}
    ),
    "heads": (EncoderOnly, {}),
}  # fmt: skip
"""Trainer and options, for which training in two processes is compared with that in one."""
RANKS = {"ddp_backend": "gloo"}


class SomeLabels(EncoderOnly):
    """Examples of one task without labels, also all of a process in a step."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs, labelled = model(**inputs), inputs["labels"] >= 0
        examples = {"sentiment": int(labelled.sum()), "topic": len(labelled)}
        losses = {
            "sentiment": nn.functional.cross_entropy(outputs["sentiment"][labelled], inputs["labels"][labelled]),
            "topic": 100 * nn.functional.cross_entropy(outputs["topic"], inputs["topics"]),
        }
        return self.homogenized_loss(losses, model, examples=examples)


SOME_LABELS = {"missing": 6, "max_steps": 2, "train_sampling_strategy": "sequential"}
WINDOWS: dict[str, dict[str, Any]] = {
    "one batch": {"per_device_train_batch_size": 4},
    "window": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "window": True},
}
"""Options of two processes with eight examples of a mixture in each step; some groups are on one of them only."""
RESUMED = {"optim": "adamw_torch", "adam_beta1": 0.0, "save_strategy": "steps", "save_steps": 1, "max_steps": 2}


def main(out: str) -> None:
    warnings.simplefilter("ignore")
    gc.freeze()  # Accelerate collects garbage after each training
    folder, found = Path(out), dict[Any, Any]()

    def train(kind: Any, text: str | None, **options: Any) -> Any:
        given = {} if text is None else {"homogenizers": gradhomog.pipeline(text)}
        return trained(kind, folder, **RANKS | options, **given)

    for name, (kind, options) in CASES.items():
        for text in (None, "none", "upgrad"):
            trainer = train(SumTrainer if text is None else kind, text, **options)
            found[name, text] = parameters(trainer.model)
    found["logs"] = train(TwoTasks, "upgrad", eval_dataset=examples(8), eval_strategy="steps").state.log_history
    found["per item"] = parameters(train(PerItem, "upgrad", missing=6, gradient_accumulation_steps=2).model)
    trainer = train(Groups, "upgrad", eval_dataset=examples(16), eval_strategy="steps")
    found["groups"], found["logs of groups"] = parameters(trainer.model), trainer.state.log_history
    for unused in (False, True):
        options = {"window": True, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
        options |= {"ddp_find_unused_parameters": unused, **SOME_LABELS}
        found["heads", unused] = parameters(train(SomeLabels, "upgrad", **options).model)
    for name, options in WINDOWS.items():
        options = {"eval_dataset": mixture(16), "eval_strategy": "steps", "max_steps": 3, **options, **RANKS}
        trainer = trained_on_mixture(folder, "upgrad", **options)
        found["mixture", name], found["logs of mixture", name] = parameters(trainer.model), trainer.state.log_history
    trainer = train(Gathered, "tracked(method='upgrad')", **RESUMED)
    found["state"], found["resumable"] = trainer.homogenizers.state_dict(), parameters(trainer.model)
    found["accelerate"] = {text: accelerated(text) for text in (None, "none", "aligned_mtl")}
    found["accelerate"]["noop hook"] = accelerated("aligned_mtl", hook=noop_hook)
    recipe: dict[str, Any] = {}
    exec(pages.blocks(pages.text("guide/ranks.md"), "python")[-1], recipe)
    for name, weighted_sum in {"uw": None, "weights from losses": recipe["weighted_sum"]}.items():
        found["accelerate"][name] = accelerated("uw", weighted_sum=weighted_sum)
    found["noop hook"] = parameters(train(Hooked, "upgrad").model)
    found["errors"] = {
        "not finite on rank 1": error_of(lambda: train(NotFinite, "upgrad")),
        "reads rows": error_of(lambda: train(TwoTasks, "graddrop")),
    }
    if importlib.util.find_spec("sentence_transformers") is not None:
        found |= sentence_transformers(folder)
    save(out, found)


def accelerated(
    text: str | gradhomog.Pipeline | None, batch_size: int = 4, hook: Any = None, batches: int = 2,
    resume: Any = None, save: Any = None, weighted_sum: Any = None,
) -> Tensor:  # fmt: skip
    """Train in a loop with Accelerate, which accumulates `batches`; the sum of the losses without `text`.

    `weighted_sum`: of the page on ranks, whose weights from losses replace `gradhomog.loss`.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    pipe = text if isinstance(text, gradhomog.Pipeline) else gradhomog.pipeline(text or "none")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=batches)
    x = torch.randn(6 * 8, 3, dtype=torch.float64)
    data = torch.utils.data.DataLoader(x, batch_size=batch_size)
    net, optimizer, data = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.1), data)
    accelerator.register_for_checkpointing(pipe)
    if hook is not None:
        net.register_comm_hook(None, hook)
    if resume is not None:
        accelerator.load_state(resume)
    for batch in data:
        with accelerator.accumulate(net):
            first, second = net(batch).square().mean(0)
            losses = {"first": first, "second": 100 * second}
            shared = accelerator.unwrap_model(net)
            total = first + 100 * second
            if weighted_sum is not None:
                total = weighted_sum(losses, pipe, lambda values: accelerator.reduce(values, "mean"))
            elif text is not None:
                total = gradhomog.loss(losses, pipe, parameters=shared, reduction="sum", group=Ranks("batch"))
            accelerator.backward(total)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if save is not None:
        accelerator.save_state(save)
    return parameters(net)


COMPONENTS = "components of one dataset"
DATASETS: dict[str, dict[str, Any]] = {
    "round robin": {},
    "proportional": {"multi_dataset_batch_sampler": "proportional", "optim": "adamw_torch", "weight_decay": 0.1},
    "accumulated": {"gradient_accumulation_steps": 2, "max_steps": 2},
    COMPONENTS: {},
    "window": {
        "multi_dataset_batch_sampler": "proportional", "gradient_accumulation_steps": 2, "max_steps": 2, "window": True,
    },
}  # fmt: skip
"""Options of trainings in which the processes have batches of other datasets."""
TRACKED = "tracked(method='aligned_mtl', rows='all', average=0)"
ONE_STEP = {"max_steps": 1, "learning_rate": 1e-9, "max_grad_norm": 0.0}


def sentence_transformers(folder: Path) -> dict[Any, Any]:
    from . import test_sentence_transformers as of_one

    def train(*args: Any, **options: Any) -> Any:
        return of_one.trained(folder, *args, **RANKS | options)

    found: dict[Any, Any] = {}
    for name, options in DATASETS.items():
        sizes = (4, 12) if "multi_dataset_batch_sampler" in options else (8, 8)
        given = {key: of_one.data(size)[key] for key, size in zip(of_one.data(), sizes, strict=True)}
        pairs = of_one.st_losses.CosineSimilarityLoss
        loss = {"close": of_one.Components, "same": pairs} if name == COMPONENTS else pairs
        for text in (None, "none"):
            # Logs of Sentence Transformers 6.2 wait for components that the other process does not have.
            unlogged = {"logging_steps": 100} if name == COMPONENTS and text is None else {}
            trainer = train(text, train=given, loss=loss, **options | unlogged)
            logged = [(log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "loss" in log]
            found["datasets", name, text] = parameters(trainer.model), logged
    for text in ("upgrad", TRACKED, "uw"):
        trainer = train(text, **ONE_STEP)
        direction = (parameters(of_one.model()) - parameters(trainer.model)) / 1e-9
        found["datasets", text] = direction, trainer.state.log_history[0]
    options = {"loss": of_one.Components, "train": of_one.data(16)["close"]}
    found["components"] = {text: parameters(train(text, **options).model) for text in (None, "none", "upgrad")}
    labels = {"loss": of_one.softmax, "train": {"labels": of_one.LABELS, "more": of_one.LABELS}}
    found["errors of datasets"] = {
        "one at a time": error_of(lambda: train("tracked")),
        "classifier": error_of(lambda: train("none", **labels)),
    }
    return found


if __name__ == "__main__":
    main(sys.argv[1])
