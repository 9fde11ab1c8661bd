"""Smooth float64 networks, tasks, and assertions that hold for every learner."""

import copy
import weakref
from dataclasses import replace

import torch
import torchopt
from torch import nn
from torch.func import functional_call

from gradhomog import Task, TaskBatch

WAYS, CLASSES = 3, 7
MAPS = {"maps": True, "input_shape": [1, 6, 6]}
"""Options of RelationNet for the maps of `image_networks`."""
INNER = {
    "sgd": lambda: torchopt.sgd(lr=0.1),
    "weight decay": lambda: torchopt.sgd(lr=0.1, weight_decay=0.05),
    "momentum": lambda: torchopt.sgd(lr=0.1, momentum=0.9),
    "nesterov": lambda: torchopt.sgd(lr=0.1, momentum=0.9, nesterov=True),
    "dampening": lambda: torchopt.sgd(lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda: torchopt.adam(lr=0.02, eps_root=1e-8),
    "rmsprop": lambda: torchopt.rmsprop(lr=0.02, eps=1e-3),
    "clipped": lambda: torchopt.chain(torchopt.clip.clip_grad_norm(1e6), torchopt.sgd(lr=0.1)),
}
"""Inner optimizers."""
BETAS = (0.5, 0.5)  # their powers are exact in float32, in which TorchOpt corrects the bias for parameters of any dtype
INNER_OF_PYTORCH = {
    "sgd": (torchopt.sgd(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (torchopt.sgd(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adam": (torchopt.adam(lr=0.1, betas=BETAS), lambda p: torch.optim.Adam(p, lr=0.1, betas=BETAS)),
}
"""Inner optimizers, and the same ones of PyTorch."""


def networks(norm=False, bias=True, seed=0):
    """Return a smooth encoder of vectors of three numbers, and a linear head."""
    torch.manual_seed(seed)
    layers = [nn.Linear(3, 6, bias=bias), *([nn.BatchNorm1d(6)] * norm), nn.Tanh(), nn.Linear(6, 4), nn.Tanh()]
    return nn.Sequential(*layers).double(), nn.Linear(4, WAYS).double()


def image_networks(norm=False, seed=0, flatten=False):
    """Return a smooth encoder of images `[n, 1, 6, 6]` to maps `[n, 2, 5, 5]`, and a head; one of them flattens."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 2, 2), *([nn.BatchNorm2d(2)] * norm), nn.Tanh()]
    parts = [nn.Sequential(*layers), nn.Sequential(nn.Linear(50, WAYS))]
    parts[0 if flatten else 1].insert(len(layers) if flatten else 0, nn.Flatten())
    return parts[0].double(), parts[1].double()


def tasks(count=3, shape=(3,), shots=2, queries=3, seed=1, classes=None):
    """Return float64 tasks of Gaussian clusters; `classes` is the number of classes that tasks draw theirs from."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for slot in range(count):
        centres = torch.randn(WAYS, *shape, generator=generator, dtype=torch.float64)
        parts = []
        for number in (shots, queries):
            y = torch.arange(WAYS).repeat(number)
            noise = torch.randn(len(y), *shape, generator=generator, dtype=torch.float64)
            parts += [centres[y] + 0.7 * noise, y]
        chosen = None if classes is None else torch.randperm(classes, generator=generator)[:WAYS]
        found.append(Task(*parts, f"domain {slot}", chosen))
    return TaskBatch.stack(found)


def class_tasks(**options):
    """Return tasks of images whose classes are some of all training classes."""
    return tasks(shape=(1, 6, 6), classes=CLASSES, **options)


def perturb(parameters, size, seed=3):
    """Change parameters from their initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter += size * torch.randn(parameter.shape, generator=generator).to(parameter)


def relation_learner(kind, maps=False, norm=False, **options):
    """Return a RelationNet or a variant of it, units of whose relation module are active."""
    encoder, head = image_networks(norm) if maps else networks(norm)
    torch.manual_seed(3)
    return kind(encoder, head, **{"hidden": 9, **(MAPS if maps else {}), **options})


class CallCounter(nn.Module):
    """Counts its calls, and in each call how many of its earlier outputs are still alive.

    `vmap` makes as many calls for all tasks as the loop for one task.
    """

    def __init__(self):
        super().__init__()
        self.calls, self.most_alive, self._outputs = 0, 0, []

    def forward(self, x):
        self.calls += 1
        self.most_alive = max(self.most_alive, sum(ref() is not None for ref in self._outputs))
        result = torch.tanh(x)
        self._outputs.append(weakref.ref(result))
        return result


def image_tasks(batch):
    """The same tasks, with inputs of three numbers as 2×2 images whose last pixel is 0."""
    support, query = (nn.functional.pad(x, (0, 1)).unflatten(-1, (1, 2, 2)) for x in (batch.support_x, batch.query_x))
    return replace(batch, support_x=support, query_x=query)


class FirstThreePixels(nn.Module):
    """Inputs of three numbers from images of `image_tasks`."""

    def forward(self, images):
        return images.flatten(1)[:, :3]


def reference_row(net, inner, task, steps, first_order=False, loss=nn.functional.cross_entropy):
    """One row with `torch.func` and TorchOpt only, by name: the gradient of the loss after the inner loop.

    `task`: support inputs and targets, query inputs and targets.
    """
    net = copy.deepcopy(net)  # its buffers change
    start = dict(net.named_parameters())

    def loss_at(parameters, x, y):
        return loss(functional_call(net, parameters, (x,)), y)

    transformation, parameters = inner(), start
    state = transformation.init(parameters)
    for _ in range(steps):
        found = torch.autograd.grad(
            loss_at(parameters, *task[:2]), list(parameters.values()), create_graph=not first_order
        )
        gradients = dict(zip(parameters, found, strict=True))
        updates, state = transformation.update(gradients, state, params=parameters, inplace=False)
        parameters = torchopt.apply_updates(parameters, updates, inplace=False)
        if first_order:
            parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
    target = parameters if first_order else start
    row = torch.autograd.grad(loss_at(parameters, *task[2:]), list(target.values()))
    return dict(zip(target, row, strict=True))


def reference_pairs(encoder, task):
    """Pairs [class mean; query] of each query with all classes, `[queries · ways, 2C, ...]`, from loops."""
    support, queries = encoder(task.support_x), encoder(task.query_x)
    means = [support[task.support_y == w].mean(0) for w in range(WAYS)]
    return torch.stack([torch.cat([mean, query]) for query in queries for mean in means])


def assert_rows_equal(one, two, rtol=1e-9, atol=1e-12):
    """Compare rows, losses, features and feature gradients of two learners."""
    assert list(one.jacobian) == list(two.jacobian)
    for name, block in one.jacobian.items():
        torch.testing.assert_close(block, two.jacobian[name], rtol=rtol, atol=atol, msg=lambda text, n=name: n + text)
    torch.testing.assert_close(one.losses, two.losses, rtol=rtol, atol=atol)
    torch.testing.assert_close(one.accuracies, two.accuracies)
    for ours, theirs in zip((*one.features, *one.feature_grads), (*two.features, *two.feature_grads), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def assert_rows_match_finite_differences(learner, batch, step=1e-6):
    """Compare rows with central differences of the losses, along a random direction of all parameters."""
    rows, generator = learner.rows(batch), torch.Generator().manual_seed(7)
    named = learner.named_parameters()
    along = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in named.items()}
    losses = []
    for size in (step, -2 * step, step):
        with torch.no_grad():
            for name, parameter in named.items():
                parameter += size * along[name]
        losses.append(learner.rows(batch).losses)
    found = sum((rows.jacobian[name] * along[name]).reshape(len(batch), -1).sum(1) for name in along)
    torch.testing.assert_close(found, (losses[0] - losses[1]) / (2 * step), rtol=1e-6, atol=1e-8)


def assert_rows_match_autograd(learner, batch, loss):
    """Compare rows with the gradients of `loss(task)`, the reference loss of a task."""
    rows, named = learner.rows(batch), learner.named_parameters()
    for slot, task in enumerate(batch):
        value = loss(task)
        torch.testing.assert_close(rows.losses[slot], value.detach(), rtol=1e-10, atol=1e-12)
        expected = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        for (name, parameter), gradient in zip(named.items(), expected, strict=True):
            gradient = torch.zeros_like(parameter) if gradient is None else gradient
            torch.testing.assert_close(rows.jacobian[name][slot], gradient, rtol=1e-9, atol=1e-12, msg=name)
