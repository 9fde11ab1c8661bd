"""Few-shot classification of Omniglot with the settings of six papers.

    python docs/examples/omniglot.py omniglot-28.npz maml --ways 5 --minutes 30

The file contains `images` `[n, 28, 28]` or `[n, 28, 28, 1]` (uint8, bright strokes), `labels` `[n]` and `class_split`:
`train`, `val` or `test` for each class. Rotations of the training characters by 90 degrees are additional classes, as
in the papers. Schedules of rates have the length `--steps`, also if `--minutes` ends the training earlier.
"""

import argparse
import time

import numpy as np
import torch
import torchopt
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import gradhomog
from gradhomog import TaskBatch, TaskDataset


def datasets(path):
    """Return training characters with rotations and test characters, as `TensorDataset`s of images and classes."""
    with np.load(path, allow_pickle=False) as file:
        images, labels, split = file["images"], torch.from_numpy(file["labels"]), file["class_split"]
    pixels = torch.from_numpy(images).reshape(len(images), -1, 28, 28)[:, :1].float() / 255
    parts = []
    for name in ("train", "test"):
        selected = torch.isin(labels, torch.from_numpy(np.flatnonzero(split == name)))
        x, y = pixels[selected], labels[selected]
        if name == "train":
            x = torch.cat([x.rot90(k, (2, 3)) for k in range(4)])
            y = torch.cat([y + k * len(split) for k in range(4)])
        parts.append(TensorDataset(x, y))
    return parts


def strided(averaged):
    """Four convolutions with stride 2 (MAML, Reptile, iMAML); MAML averages over the remaining pixels."""
    layers = []
    for channels in (1, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1 if averaged else 2), nn.Flatten())


def pooled(activation):
    """Four convolutions with max-pooling (ProtoNet; MAML++ with leaky ReLU)."""
    layers = []
    for channels in (1, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64), activation, nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


def settings(name, ways, steps):
    """Return network, options, training tasks, their number, outer optimizer and schedule of the learner's paper."""
    paper = {
        "encoder": strided(averaged=True),
        "options": {},
        "train": {"ways": ways, "shots": 1, "queries": 1},
        "tasks": 32 if ways == 5 else 16,
        "outer": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        "schedule": lambda done: 1.0,
    }
    if name in ("maml", "fomaml"):  # Finn et al. 2017, appendix A.1
        inner_lr, inner_steps, test_steps = (0.4, 1, 3) if ways == 5 else (0.1, 5, 5)
        paper["options"] = {"inner_lr": inner_lr, "inner_steps": inner_steps, "test_steps": test_steps}
    elif name == "mamlpp":  # Antoniou et al. 2019, section 5, and its code's configuration
        paper |= {"encoder": pooled(nn.LeakyReLU()), "tasks": 8}
        rates = {"inner_lr": 0.1, "inner_steps": 5, "final_outer_lr": 1e-5}
        paper["options"] = rates | {"multi_step_steps": steps // 10, "anneal_steps": steps}
    elif name == "imaml":  # Rajeswaran et al. 2019, appendix, and its code
        paper |= {"encoder": strided(averaged=False), "tasks": 32}
        paper["options"] = {"inner_lr": 0.1, "inner_steps": 16 if ways == 5 else 25, "proximal": 2.0, "cg_steps": 5}
        paper["outer"] = lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=1e-3)
    elif name == "reptile":  # Nichol et al. 2018, table 4: tasks have ten examples of a class and no query set
        inner_lr, inner_steps, inner_batch = (1e-3, 5, 10) if ways == 5 else (5e-4, 10, 20)
        paper |= {"encoder": strided(averaged=False), "tasks": 5}
        paper["train"] = {"ways": ways, "shots": 1, "queries": 9}
        paper["options"] = {
            "inner": torchopt.adam(lr=inner_lr, betas=(0.0, 0.999)),
            "keep_state": True,
            "inner_steps": inner_steps,
            "test_steps": 50,
            "inner_batch": inner_batch,
            "on": "all",
            "scale": 1 / inner_steps,
        }
        paper["outer"] = lambda parameters: torch.optim.SGD(parameters, lr=1.0)
        paper["schedule"] = lambda done: max(1 - done / steps, 0.0)
    elif name == "protonet":  # Snell et al. 2017, section 3.1: training tasks have 60 ways
        paper |= {"encoder": pooled(nn.ReLU()), "tasks": 1, "train": {"ways": 60, "shots": 1, "queries": 5}}
        paper["schedule"] = lambda done: 0.5 ** (done // 2000)
    return paper


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument(
        "learner", nargs="?", default="maml", help="name; the paper's options override those in parentheses"
    )
    parser.add_argument("--homogenizers", default="none")
    parser.add_argument("--ways", type=int, choices=(5, 20), default=5)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--minutes", type=float, default=30, help="stop after this time")
    parser.add_argument("--every", type=int, default=500, help="number of meta-steps between two tests")
    parser.add_argument("--test-tasks", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0, help="processes that load tasks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    name = options.learner.partition("(")[0]
    paper = settings(name, options.ways, options.steps)
    encoder, tasks = paper["encoder"], paper["tasks"]
    with torch.no_grad():
        width = encoder(torch.zeros(2, 1, 28, 28)).shape[1]
    network = encoder.to(options.device), nn.Linear(width, paper["train"]["ways"], device=options.device)
    learner = gradhomog.learner(options.learner, *network, homogenizers=options.homogenizers, **paper["options"])
    outer = paper["outer"](learner.parameters())
    schedule = LambdaLR(outer, paper["schedule"])
    train, test = datasets(options.file)
    episodes = TaskDataset(train, length=options.steps * tasks, seed=options.seed, **paper["train"])
    unseen = TaskDataset(test, length=10**6, seed=1, ways=options.ways, shots=1, queries=1)
    batches = DataLoader(episodes, batch_size=tasks, num_workers=options.workers, collate_fn=TaskBatch.stack)
    start, scores = time.monotonic(), []
    print("meta-steps   minutes   accuracy of training   test accuracy ± 95 %, %", flush=True)
    for step, batch in enumerate(batches, start=1):
        report = learner.step(batch.to(options.device), outer)
        schedule.step()
        scores = [*scores[-99:], report.accuracies.mean()]
        finished = step == options.steps or time.monotonic() - start > 60 * options.minutes
        if step % options.every == 0 or finished:
            count = options.test_tasks if finished else options.test_tasks // 3
            values = learner.evaluate(unseen[index].to(options.device) for index in range(count)).scores
            values = 100 * torch.tensor(values)
            interval = 1.96 * values.std() / count**0.5
            minutes, training = (time.monotonic() - start) / 60, 100 * torch.stack(scores).mean()
            print(f"{step:10}   {minutes:7.1f}   {training:20.1f}   {values.mean():.1f} ± {interval:.1f}", flush=True)
        if finished:
            break


if __name__ == "__main__":
    main()
