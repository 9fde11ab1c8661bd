"""What must stay as it was: the input, the global generators."""

from __future__ import annotations

import torch

from gradhomog.evidence import TaskKey
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import same
from gradhomog.testing.generators import positions, seeded
from gradhomog.testing.holding import held
from gradhomog.testing.homogenizers.subject import HomogenizerSubject


@check("homogenizers")
def input_untouched(subject: HomogenizerSubject) -> None:
    """Rows, losses, features and what else is shown hold after two steps what they held before.

    And so do features that go through `transform`, and the inputs of the encoder that it is attached to.
    """
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

    features = rows[:, None, :].clone()  # as wide as those that it has learnt from
    pipe.transform(features, [TaskKey(slot, f"domain {slot}") for slot in range(len(rows))])
    same(features, rows[:, None, :], "the features given to `transform`")
    if subject.acts_before_rows:
        pipe, batch, untouched = subject.pipeline(), subject.arena.batch(), subject.arena.batch()
        for _ in range(2):
            subject.lap(pipe, batch)
        for name in ("support_x", "query_x"):
            same(getattr(batch, name), getattr(untouched, name), f"`{name}` after the steps")


@check("homogenizers")
def global_generators_untouched(subject: HomogenizerSubject) -> None:
    """The global generators of torch, numpy and Python are where they were: randomness is the homogenizer's own."""
    with seeded(271828):  # where nobody seeds them to
        before = positions()
        subject.exercise(subject.pipeline(), steps=3)
        moved = [name for name, now in positions().items() if now != before[name]]
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
        with seeded(seed):
            found.append(subject.exercise(subject.pipeline(), steps=4))
    for step, (one, two) in enumerate(zip(*found, strict=True)):
        same(one, two, f"output {step} of two made alike")


@check("homogenizers", claim="stochastic")
def stochastic(subject: HomogenizerSubject) -> None:
    """It carries a `torch.Generator` of its own."""
    if not any(generators for homogenizer in subject.pipeline() for generators in held(homogenizer, torch.Generator)):
        raise CheckFailure("no torch.Generator among its attributes")
