"""A complete training loop: missing labels, accumulation, half precision, clipping, a schedule, logs, exact resumption.

python docs/examples/complete_loop.py upgrad --checkpoint run.pt

Three regressions on made data; most examples have no label of "dose". Start it again after an interruption, with the
same arguments: it continues from the checkpoint, and ends with the bits of an uninterrupted run.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn

import gradhomog

TASKS, BATCH, PARTS, SAVE_EVERY = ("age", "weight", "dose"), 64, 4, 5


class Model(nn.Module):
    """An encoder that all tasks share, and one head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1))
        self.heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in TASKS})


def made_data(examples: int = 512) -> tuple[Tensor, dict[str, Tensor]]:
    """Return inputs and labels by task, NaN where a label is missing."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, 8, generator=generator)
    labels = {"age": 10 * x[:, 0] + x[:, 1], "weight": x[:, 1] - x[:, 2].square(), "dose": 0.1 * x[:, 3]}
    missing = torch.rand(examples, generator=generator) < 0.95
    return x, {**labels, "dose": labels["dose"].where(~missing, torch.nan)}


def losses_of(model: Model, x: Tensor, labels: dict[str, Tensor], counts: dict[str, int]) -> dict[str, Tensor | None]:
    """Return each task's part of the mean over the labels of the whole batch; None without labels in this part."""
    z = model.encoder(x)
    losses: dict[str, Tensor | None] = {}
    for task in TASKS:
        labelled = labels[task].isfinite()
        if not labelled.any():
            losses[task] = None  # the head gets no gradient from this part
            continue
        errors = model.heads[task](z[labelled]).squeeze(1).float() - labels[task][labelled]
        losses[task] = errors.square().sum() / counts[task]
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", nargs="?", default="upgrad")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
    parser.add_argument("--stop", type=int, help="interrupt before this step, for a test")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, labels = made_data()
    model, pipe = Model().to(device), gradhomog.pipeline(args.method)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    scaler = torch.amp.GradScaler(device)
    # All that a step changes. Random numbers are a part, because of dropout; the order of examples is a function of
    # the epoch, and the homogenizers' own random numbers are a function of their seed and the step, which `pipe` has.
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler, "homogenizers": pipe}

    first = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["random"].cpu())
        if device == "cuda":
            torch.cuda.set_rng_state(saved["cuda random"].cpu())
        first = saved["step"]

    per_epoch = len(x) // BATCH
    for step in range(first, args.steps):
        if step == args.stop:
            return
        epoch, index = divmod(step, per_epoch)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        batch = order[index * BATCH : (index + 1) * BATCH]
        counts = {task: int(labels[task][batch].isfinite().sum()) for task in TASKS}

        optimizer.zero_grad()
        # Homogenizes the sum over the parts, once. For each part alone: scaler.scale(gradhomog.loss(...)).backward()
        with gradhomog.accumulated(pipe, parameters=model.encoder, scaler=scaler, inspect=True) as several:
            for part in batch.chunk(PARTS):
                with torch.autocast(device, dtype=torch.float16):
                    of_part = {task: values[part].to(device) for task, values in labels.items()}
                    losses = losses_of(model, x[part].to(device), of_part, counts)
                several.add(losses)
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scale = scaler.get_scale()
        scaler.step(optimizer)  # does nothing after an overflow, and the homogenizers' states have not changed
        scaler.update()
        if scaler.get_scale() >= scale:
            schedule.step()

        numbers = {"step": step, "norm": float(norm), "rate": schedule.get_last_lr()[0], **several.step.scalars()}
        print(json.dumps(numbers))
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == args.steps:
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"step": step + 1, "random": torch.get_rng_state()}
            if device == "cuda":
                state["cuda random"] = torch.cuda.get_rng_state()
            new = args.checkpoint.with_suffix(".new")
            torch.save(state, new)
            new.replace(args.checkpoint)  # an interruption leaves the old checkpoint or the new one, never a part


if __name__ == "__main__":
    main()
