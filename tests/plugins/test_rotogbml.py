"""The preset: the three modules, any of them, none of them."""

import itertools

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Task
from gradhomog_adapters.maml import MAML


def images(count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    return [
        Task(draw(6, 1, 8, 8), torch.arange(6) % 3, draw(9, 1, 8, 8), torch.arange(9) % 3, f"domain {i}")
        for i in range(count)
    ]


def learner(homogenizers):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return MAML(encoder, nn.Linear(64, 3), homogenizers, inner_steps=2, inner_lr=0.1)


def trained(homogenizers, steps=2, batches=images):
    model = learner(homogenizers)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model.step(batches(seed=step), outer)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("modules", list(itertools.product([True, False], repeat=3)))
def test_it_is_the_sum_of_the_modules_that_are_switched_on(modules):
    names = ("isi", "rotate", "reweight")
    options = ", ".join(f"{name}={str(on).lower()}" for name, on in zip(names, modules, strict=True))
    pipe = gradhomog.pipeline(f"rotogbml({options})")
    assert [member.selector for member in pipe.members] == [n for n, on in zip(names, modules, strict=True) if on]
    written = " + ".join(n for n, on in zip(names, modules, strict=True) if on) or "none"
    assert torch.equal(trained(f"rotogbml({options})"), trained(written))


def test_options_reach_their_modules_and_common_ones_reach_both():
    pipe = gradhomog.pipeline("rotogbml(reweight={'beta': 0.1}, rotate={'lr': 0.01, 'key': 'slot'})")
    _, rotate, reweight = pipe
    assert (rotate.lr, rotate.key, reweight.beta, reweight.key) == (0.01, "slot", 0.1, "domain")


def test_an_unknown_option_of_a_module_raises_with_its_name():
    with pytest.raises(gradhomog.OptionError, match=r"reweight has no option 'bet'"):
        gradhomog.pipeline("rotogbml(reweight={'bet': 0.1})")


def test_it_keeps_the_name_that_the_user_wrote():
    assert str(gradhomog.pipeline("rotogbml + pcgrad")) == "rotogbml + pcgrad"
