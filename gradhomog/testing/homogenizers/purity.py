"""What must stay as it was: the input, the global generators."""

from __future__ import annotations

import random

import numpy as np
import torch

from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import same
from gradhomog.testing.homogenizers.subject import HomogenizerSubject


@check("homogenizers")
def input_untouched(subject: HomogenizerSubject) -> None:
    """Rows, losses, features and what else is shown hold after two steps what they held before."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 12, generator=generator, dtype=torch.float64)
    rows[1] = -2 * rows[0]
    pipe = subject.pipeline()
    shown = subject.shown(rows, pipe)
    given = {"jacobian": rows, **{name: value for name, value in shown.items() if isinstance(value, torch.Tensor)}}
    before = {name: value.clone() for name, value in given.items()}
    for _ in range(2):
        pipe.combine(rows, **shown)
        pipe.combine({"a": rows[:, :5], "b": rows[:, 5:]}, **shown)
    for name, value in given.items():
        same(value, before[name], f"`{name}` after the steps")


@check("homogenizers")
def global_generators_untouched(subject: HomogenizerSubject) -> None:
    """The global generators of torch, numpy and Python are where they were: randomness is the homogenizer's own."""
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    subject.exercise(subject.pipeline(), steps=3)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    moved = [
        name
        for name, was, now in zip(("torch", "numpy", "Python"), before, after, strict=True)
        if not (
            torch.equal(was, now) if isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor) else was == now
        )
    ]
    if moved:
        raise CheckFailure(
            f"it draws from the global generator of {', '.join(moved)}: draw from a torch.Generator of its own, "
            "seeded by an option `seed`, and list it in `carried`"
        )


@check("homogenizers")
def same_seed_same_answer(subject: HomogenizerSubject) -> None:
    """Two made alike give the same directions, bit for bit, whatever the global generators are."""
    found = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found.append(subject.exercise(subject.pipeline(), steps=4))
    for step, (one, two) in enumerate(zip(*found, strict=True)):
        same(one, two, f"output {step} of two made alike")


@check("homogenizers", claim="stochastic")
def stochastic(subject: HomogenizerSubject) -> None:
    """It carries a `torch.Generator` of its own."""
    for homogenizer in subject.pipeline():
        if any(isinstance(getattr(homogenizer, name, None), torch.Generator) for name in homogenizer.carried):
            return
    raise CheckFailure("no torch.Generator among the attributes that are `carried`")
