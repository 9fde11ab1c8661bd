"""Every learner that comes with the package passes the whole kit, with several options."""

from __future__ import annotations

from gradhomog import available
from gradhomog.testing import parametrize_with_checks

BUILT_IN = [
    "maml",
    'maml(inner="adam", inner_steps=2, norm="support")',
    "fomaml",
    'fomaml(inner="momentum", inner_steps=2, test_steps=4, norm="frozen", adapt="head.*")',
    "mamlpp",
    "anil",
    "boil",
    "meta_sgd",
    "reptile",
    "imaml",
    "protonet",
    "metaoptnet",
    "relationnet",
    'relationnet(norm="support", objective="softmax")',
    "baseline(test_epochs=5)",
    'baseline_pp(test_epochs=5, norm="support")',
]


@parametrize_with_checks(BUILT_IN, kind="learners")
def test_it_conforms(check):
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
    assert {text.partition("(")[0] for text in BUILT_IN} == set(available("learners"))
