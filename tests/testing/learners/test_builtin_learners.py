"""Every learner that comes with the package passes the whole kit, with several options.

Those that form rows as another does, and other options, in the fast mode; in the development loop one, in that mode.
"""

from __future__ import annotations

import os

import pytest

from gradhomog import available
from gradhomog.testing import parametrize_with_checks

DIFFERENT = [
    "maml",
    "reptile",
    "imaml",
    "protonet",
    "metaoptnet",
    "baseline(test_epochs=5)",
]
DERIVED = [
    "mamlpp",
    "meta_sgd",
    "relationnet",
    'maml(inner="adam", inner_steps=2, norm="support")',
    "fomaml",
    'fomaml(inner="momentum", inner_steps=2, test_steps=4, norm="frozen", adapt="head.*")',
    "anil",
    "boil",
    "cavia(context=3, inner_steps=2)",
    "alfa(inner_steps=2)",
    'relationnet(norm="support", objective="softmax")',
    'baseline_pp(test_epochs=5, norm="support")',
]
DEVELOPMENT = bool(os.environ["DEVELOPMENT_LOOP"])


@parametrize_with_checks(["protonet"] if DEVELOPMENT else DIFFERENT, kind="learners", fast=DEVELOPMENT)
def test_it_conforms(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(DERIVED, kind="learners", fast=True)
def test_one_made_of_another_conforms(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(
    ["sharp_maml(inner_radius=0.05, inner_steps=2)"],
    kind="learners",
    fast=True,
    expected_failures={
        "rows_independent_of_batch": "the mean of all rows decides where they are taken",
        "feature_grads": "a homogenizer that moves features moves that point too, which is a constant in derivatives",
    },
)
def test_rows_at_the_worst_nearby_point_conform_but_for_what_depends_on_it(check):
    check()


@parametrize_with_checks(
    ["maml(first_order=true)"],
    kind="learners",
    only=["*rows*", "feature_grads"],
    expected_failures={"exact_rows": "the option leaves out what the adapted parameters owe to the initial ones"},
)
def test_first_order_rows_are_exact_but_for_the_inner_loop(check):
    check()


def test_none_is_forgotten():
    assert {text.partition("(")[0] for text in DIFFERENT + DERIVED} | {"sharp_maml"} == set(available("learners"))
