"""The preset: the three modules, any of them, none of them."""

import itertools

import pytest
import torch

import gradhomog
from tests.plugins.isi.networks import learner, tasks


def trained(homogenizers, steps=2):
    model = learner(homogenizers)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model.step(tasks(3, seed=step), outer)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.slow_after_first
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
