"""Few-shot classification of Omniglot with the settings of Finn et al. 2017, section 5.2.

    python docs/examples/omniglot.py omniglot-28.npz maml --ways 5 --minutes 30

The file holds `images` `[n, 28, 28]` or `[n, 28, 28, 1]` (uint8, strokes bright), `labels` `[n]` and `class_split`: for
each class `train`, `val` or `test`. Rotations by 90 degrees of the training characters are classes of their own, as in
the paper.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import gradhomog
from gradhomog import TaskBatch, TaskDataset


def datasets(path):
    """The training characters with their rotations, and the test characters: `TensorDataset`s of images and classes."""
    with np.load(path, allow_pickle=False) as file:
        images, labels, split = file["images"], torch.from_numpy(file["labels"]), file["class_split"]
    pixels = torch.from_numpy(images).reshape(len(images), -1, 28, 28)[:, :1].float() / 255
    parts = []
    for name in ("train", "test"):
        chosen = torch.isin(labels, torch.from_numpy(np.flatnonzero(split == name)))
        x, y = pixels[chosen], labels[chosen]
        if name == "train":
            x = torch.cat([x.rot90(k, (2, 3)) for k in range(4)])
            y = torch.cat([y + k * len(split) for k in range(4)])
        parts.append(TensorDataset(x, y))
    return parts


def network(ways, filters=64):
    """Four convolutions with stride 2 and batch normalization, averaged over the pixels, and a linear head."""
    layers = []
    for channels in (1, filters, filters, filters):
        layers += [nn.Conv2d(channels, filters, 3, stride=2, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(filters, ways)


# inner_lr, inner_steps, test_steps and tasks per meta-step of the paper, by the number of ways.
INNER_LOOP = ("maml", "fomaml", "mamlpp", "anil", "boil", "imaml", "sharp_maml")
PAPER = {5: (0.4, 1, 3, 32), 20: (0.1, 5, 5, 16)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("learner", nargs="?", default="maml")
    parser.add_argument("--homogenizers", default="none")
    parser.add_argument("--ways", type=int, choices=PAPER, default=5)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--minutes", type=float, default=30, help="end when they are over")
    parser.add_argument("--every", type=int, default=500, help="meta-steps between two tests")
    parser.add_argument("--test-tasks", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    inner_lr, inner_steps, test_steps, tasks = PAPER[options.ways]
    gradient_based = options.learner.partition("(")[0] in (
        "maml",
        "fomaml",
        "mamlpp",
        "anil",
        "boil",
        "imaml",
        "reptile",
    )
    inner = {"inner_lr": inner_lr, "inner_steps": inner_steps, "test_steps": test_steps} if gradient_based else {}
    learner = gradhomog.learner(options.learner, *network(options.ways), homogenizers=options.homogenizers, **inner)
    outer = torch.optim.Adam(learner.parameters(), lr=1e-3)
    train, test = datasets(options.file)
    shape = {"ways": options.ways, "shots": 1, "queries": 1}
    episodes = TaskDataset(train, length=options.steps * tasks, seed=options.seed, **shape)
    unseen = TaskDataset(test, length=10**6, seed=1, **shape)
    start, scores = time.monotonic(), []
    print("meta-steps   minutes   accuracy of training   test accuracy ± 95 %, %", flush=True)
    for step in range(1, options.steps + 1):
        batch = TaskBatch.stack([episodes[(step - 1) * tasks + place] for place in range(tasks)])
        scores.append(float(learner.step(batch, outer).accuracies.mean()))
        over = time.monotonic() - start > 60 * options.minutes
        if step % options.every == 0 or over or step == options.steps:
            count = options.test_tasks if over or step == options.steps else options.test_tasks // 3
            found = 100 * torch.tensor(learner.evaluate(unseen[place] for place in range(count)).scores)
            interval = 1.96 * found.std() / count**0.5
            minutes, training = (time.monotonic() - start) / 60, 100 * sum(scores[-100:]) / len(scores[-100:])
            print(f"{step:10}   {minutes:7.1f}   {training:20.1f}   {found.mean():.1f} ± {interval:.1f}", flush=True)
        if over:
            break


if __name__ == "__main__":
    main()
