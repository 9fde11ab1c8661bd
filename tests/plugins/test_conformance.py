"""Every built-in homogenizer passes the conformance kit: by name, and with options the checks that they affect.

The quick tests run the checks of directions with few examples; the slow tests all others, and some methods in full.
"""

from fnmatch import fnmatch

import pytest

from gradhomog.testing import checks, parametrize_with_checks
from tests.plugins.rows import BUILT_IN

ON_ROWS = (
    "finite_*", "identical_rows", "zero_rows_*", "half_*", "*equivariant", "differentiable",
    "resumes_from_state_dict", "state_by_name",
)  # fmt: skip
QUICK = (*ON_ROWS, "options_*", "non_conflicting", "orthogonal", "stochastic")
OTHERS = [
    check.name for check in checks("homogenizers") if not any(fnmatch(check.name, pattern) for pattern in QUICK)
]  # fmt: skip
# One method for each solver, kind of state and stage; the others pass the same checks with fewer examples.
IN_FULL = [
    "aligned_mtl", "cagrad", "cr_mogm", "gradnorm", "graddrop", "gradvac", "isi", "mgda", "moco", "nash_mtl",
    "reweight", "rotate", "sdmgrad", "trimmed_mean", "upgrad", "uw",
]  # fmt: skip


@parametrize_with_checks(BUILT_IN, only=QUICK, fast=True)
def test_a_built_in_conforms_by_few_examples(check):
    check()


@pytest.mark.slow
@parametrize_with_checks([name for name in BUILT_IN if name not in IN_FULL], only=OTHERS, fast=True)
def test_a_built_in_conforms_to_the_other_checks_by_few_examples(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(IN_FULL)
def test_a_built_in_conforms_in_full(check):
    check()


def conforms(subjects, only, **options):
    """A test of few examples of the checks of rows, for methods with options."""

    @pytest.mark.slow
    @parametrize_with_checks(subjects, only=only, fast=True, **options)
    def test(check):
        check()

    return test


test_a_built_in_with_options_conforms = conforms(
    [
        "static(weights=[1, 2, 3, 4, 5, 6])", "static(weights='random')",
        "pcgrad(order='fixed')",
        "gradnorm(alpha=0)",
        "reweight(lr=0.1)", "reweight(solver='fixed_point')",
        "rotate(lr=0.1)", "rotate_rows(max_angle=0.3)",
        "isi(temperature=inf, sampling='multinomial', until=1)",
        "famo(lr=0.2)", "dwa(period=1)", "rlw(distribution='bernoulli')",
        "uw(lr=0.1)", "imtl_l(lr=0.1)",
        "softadapt(variant='loss_weighted', order=3)", "relobralo(alpha=0.5, rho=0.5)",
        "go4align(groups=3, lr=0.5)", "ldc_mtl(normalization='log', lr=0.1)",
        "lra(weighted=false, alpha=1)",
        "lra(statistic='std_over_kurtosis', every=2, minimum=1)", "lra(statistic='std_plus_max')",
        "metabalance(relax=1, beta=0, strategy='reduce')",
        "ntk(every=1, average=0.5)", "multiadam(beta2=0.9)",
        "config(length='min')", "config(length='geometric')", "krum(squared=false)",
        "aligned_mtl(scale_mode='median')", "aligned_mtl(scale_mode='rmse')",
        "gradvac(beta=0.5, order='fixed')", "cr_mogm(method='gradvac(beta=0.5)')",
        "tracked(method='config', every=2)", "tracked(method='gradvac(beta=0.5)', rows=2)",
        "tracked(order='compatible', every=2)",
        "mgda(on='features')", "cagrad(c=0.9)", "fairgrad(alpha=0.5)", "graddrop(leak=0.3)",
        "rotograd(variant='reference', pool='task', burn_in=2, lr=0.5)",
        "dcgd(variant='projection')", "dcgd(variant='average')", "pcd(primary=0, tau=0.5, beta=0)",
        "and_mask(tau=0.5, rescale=true)", "sand_mask(k=0.1, rescale=true)", "sago(agreeing='both')",
    ],
    ON_ROWS,
)  # fmt: skip

test_a_rotation_with_options_conforms = conforms(
    ["rotate(parameterization='geodesic', variant='paper', lr=0.1)"], [*ON_ROWS, "orthogonal"]
)

test_a_preset_with_options_conforms = conforms(
    ["rotogbml(isi=false, rotate={'lr': 0.1})"], [*ON_ROWS, "stochastic"],
    expected_failures={"stochastic": "of its three, only isi draws"},
)  # fmt: skip

ROTATED = ["scale_equivariant", "rotation_equivariant"]

# Without `permutation_equivariant` and `state_by_name`: their options or state belong to slots.
test_methods_with_options_by_slot_conform_except_for_the_order = conforms(
    ["stch(log=true, warmup=0, period=1, mu=0.5)", "stch(weights=[1, 2, 3, 4, 5, 6])",
     "cosmos(preferences=[1, 2, 3, 4, 5, 6])", "pbi(preferences=[1, 2, 3, 4, 5, 6])"],
    [*(set(ON_ROWS) - {"*equivariant", "state_by_name"}), *ROTATED],
)  # fmt: skip

# Its weights belong to slots, too. Dependence on the order is not asserted: finding an example takes ten seconds.
test_a_descent_with_state_by_slot_conforms = conforms(
    ["sdmgrad(solver='sgd')"], [*(set(ON_ROWS) - {"*equivariant"}), *ROTATED]
)

# Not the equivariances: for parallel rows of different norms several weights are optimal after normalization, and they
# give different directions with the given rows.
test_mgda_of_unit_rows_conforms = conforms(
    ["mgda(normalize='l2')"], [*(pattern for pattern in ON_ROWS if pattern != "*equivariant"), "non_conflicting"],
    expected_failures={"non_conflicting": "only the shortest vector of the unit rows has no conflict"},
)  # fmt: skip

test_mgda_of_rows_over_losses_conforms = conforms(
    ["mgda(normalize='loss+')"], [*ON_ROWS, "non_conflicting"],
    expected_failures={"non_conflicting": "only the shortest vector of the rows over their losses has no conflict"},
)  # fmt: skip
