"""Every built-in learner passes the conformance kit, with several options.

Learners that compute rows like another learner, other options, and the slow iMAML are checked in the fast mode. The
quick tests check one learner that adapts by gradients and one that does not, in the fast mode.
"""

import pytest

from gradhomog import available
from gradhomog.testing import parametrize_with_checks

DIFFERENT = [
    "maml", "reptile", "protonet", "metaoptnet", "baseline(test_epochs=5)", "skd(generation0_steps=5)",
]  # fmt: skip
DERIVED = [
    "imaml", "mamlpp", "meta_sgd", "relationnet", "relationnet_ata(hidden=9, ascent_steps=2, probability=1.0)",
    'maml(inner="adam", inner_steps=2, norm="support")', "fomaml",
    'fomaml(inner="momentum", inner_steps=2, test_steps=4, norm="frozen", adapt="head.*")',
    "anil", "boil", "cavia(context=3, inner_steps=2)", "alfa(inner_steps=2)",
    'relationnet(norm="support", objective="softmax")', 'baseline_pp(test_epochs=5, norm="support")',
    "meta_transfer(inner_steps=3, test_steps=5)",
    'meta_transfer(pretrain_steps=6, inner_steps=3, test_steps=5, norm="support")',
    'skd(generation0_steps=0, norm="support")',
]  # fmt: skip


@parametrize_with_checks(["maml(inner_steps=2)", "protonet"], kind="learners", fast=True)
def test_a_learner_of_each_family_conforms_by_few_examples(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(DIFFERENT, kind="learners")
def test_built_in_learners_conform(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(DERIVED, kind="learners", fast=True)
def test_learners_that_derive_from_others_conform(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(
    ["sharp_maml(inner_radius=0.05, inner_steps=2)"],
    kind="learners",
    fast=True,
    expected_failures={
        "rows_independent_of_batch": "the point of the rows depends on the mean of all rows",
        "feature_grads": "shifted features also shift the point of the rows, which is a constant in derivatives",
    },
)
def test_sharp_maml_conforms_except_for_checks_that_fix_the_point_of_the_rows(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(
    ["relationnet_lrp(hidden=9)"],
    kind="learners",
    fast=True,
    expected_failures={"feature_grads": "shifted features also change the weights, which are constants in derivatives"},
)
def test_relationnet_lrp_conforms_except_for_constant_weights(check):
    check()


def test_every_built_in_learner_is_tested():
    assert {text.partition("(")[0] for text in DIFFERENT + DERIVED} | {"sharp_maml", "relationnet_lrp"} == set(
        available("learners")
    )
