"""Few-shot MAML on TorchOpt: four tasks per step, each of another script; evaluated on an unseen script."""

import numpy as np
import torch
import torchopt
from torch import nn
from torch.nn.functional import cross_entropy

import gradhomog

TASKS = {"ways": 5, "shots": 1, "queries": 5}
SCRIPTS = ("glyphs:latin", "glyphs:greek", "glyphs:cyrillic", "glyphs:arrows")


def network():
    layers = []
    for channels in (1, 16, 16):
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 3 * 3, TASKS["ways"]))


def adapted_loss(net, task):
    inner = torchopt.MetaSGD(net, lr=0.05)
    for _ in range(3):
        inner.step(cross_entropy(net(task.support_x), task.support_y))
    return cross_entropy(net(task.query_x), task.query_y)


def train(net, batches):
    outer = torch.optim.Adam(net.parameters(), lr=2e-3)
    start = torchopt.extract_state_dict(net, by="reference", detach_buffers=True)
    for batch in batches:
        outer.zero_grad()
        for task in batch:
            (adapted_loss(net, task) / len(batch)).backward()
            torchopt.recover_state_dict(net, start)
        outer.step()


def evaluate(net, tasks):
    start = torchopt.extract_state_dict(net, by="reference", detach_buffers=True)
    losses = []
    for task in tasks:
        losses.append(adapted_loss(net, task).item())
        torchopt.recover_state_dict(net, start)
    return sum(losses) / len(losses)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small networks: more threads are slower
    random = np.random.default_rng(0)
    domains = [gradhomog.domain(name) for name in SCRIPTS]
    net = network()
    train(net, ([domain.sample("train", random, **TASKS) for domain in domains] for _ in range(25)))
    unseen = gradhomog.domain("glyphs:georgian")
    loss = evaluate(net, [unseen.sample("all", random, **TASKS) for _ in range(20)])
    print(f"loss on an unseen script after 3 inner steps: {loss:.3f}")
