"""Values of options that methods reject, alone and for the tasks and losses of a batch."""

import re

import pytest
import torch

import gradhomog
from gradhomog import OptionError

# The first option of each is the one that is out of range. No option may be infinite or another word than its choices:
# tests/registry states this of all options.
OUT_OF_RANGE = [
    "and_mask(tau=1.1)", "and_mask(tau=-0.1)", "cagrad(c=-0.1)", "autoscale(warmup=0)", "cosmos(penalty=-1)",
    "cosmos(preferences=[-1, 2])", "cr_mogm(alpha=1.1)", "db_mtl(beta=1)", "db_mtl(sigma=-1)", "dwa(temperature=0)",
    "dwa(period=0)", "excess_mtl(lr=0)", "fairgrad(alpha=0)", "fairgrad(alpha=0.1)", "fairgrad(alpha=30)",
    "fairgrad(max_norm=-1, scale='paper')", "famo(lr=0)", "famo(weight_decay=-1)", "famo(smoothing=1)", "fwt(gamma=11)",
    "fwt(beta=-2)", "fwt(layers='')", "fwt(layers=[])", "go4align(groups=0)", "go4align(lr=-1)", "graddrop(leak=-0.1)",
    "graddrop(leak=[0, 2])", "graddrop(leak=[])", "graddrop(sharpness=0.5)", "gradnorm(alpha=-1)", "gradnorm(lr=0)",
    "gradnorm(initial_loss=0)", "gradvac(beta=1.5)", "gradvac(ceiling=1)", "imtl_l(lr=0)", "isi(rate=1)",
    "isi(temperature=-1)", "isi(bandwidth=0)", "isi(radius=0)", "isi(neighbours=0)", "isi(until=-1)", "isi(layers=0)",
    "isi(layers=[])", "isi(layers='')", "krum(n_byzantine=-1)", "krum(n_selected=0)", "ldc_mtl(penalty=0.5)",
    "ldc_mtl(lr=0)", "ldc_mtl(bound=70)", "moco(beta=0)", "moco(beta=1.5)", "moco(beta_decay=-1)", "moco(gamma=-1)",
    "moco(rho=-0.1)", "nash_mtl(max_norm=0, scale='paper')", "pbi(penalty=-1)", "pbi(ideal=[0, inf])",
    "pcd(primary=-1)", "pcd(tau=1.5)", "pcd(beta=1.0)", "relobralo(alpha=1.5)", "relobralo(rho=-1)",
    "relobralo(temperature=0)", "reweight(beta=-1)", "reweight(lr=0)", "reweight(initial_loss=0)",
    "reweight(max_weight=0.5)", "rotate(lr=0)", "rotate(max_angle=4.0)", "rotate_rows(max_angle=-1.0)",
    "rotograd(lr=0)", "rotograd(decay=1.5)", "rotograd(size=0)", "rotograd(burn_in=-1)", "sago(primary=-1)",
    "sand_mask(tau=1.0)", "sand_mask(tau=-0.1)", "sand_mask(k=0.0)", "sdmgrad(regularization=-1)", "sdmgrad(lr=0)",
    "sdmgrad(momentum=1)", "sdmgrad(iterations=0)", "softadapt(order=6)", "static(spread=0.5)",
    "static(weights=[1, -2, 1])", "stch(mu=0)", "stch(warmup=-1)", "stch(period=0)", "stch(weights=[-1, 2])",
    "stch(ideal=[0, inf])", "tracked(rows=0)", "tracked(average=1.0)", "trimmed_mean(trim=-1)",
    "trimmed_mean(trim=0.5)", "uw(lr=0)", "uw(bound=-1)", "uw(bound=70)", "uw_so(temperature=0)",
]  # fmt: skip


@pytest.mark.parametrize("text", OUT_OF_RANGE)
def test_a_value_out_of_range_raises_with_the_name_of_its_option(text):
    name, option = re.match(r"(\w+)\((\w+)=", text).groups()
    with pytest.raises(OptionError, match=f"{name}.*`{option}` must be"):
        gradhomog.pipeline(text)


ONES = [1.0, 1.0, 1.0]
NUMBER = "must hold one number per task; got"
# For the losses of a step, which may have names; None: a step without losses.
UNUSABLE = [
    ("static(weights=[1, 2])", ONES, rf"static: `weights` {NUMBER} 2 for 3 tasks\."),
    ("static(weights=[0, 0, 0])", ONES, "not all be zero"),
    ('static(weights={"a": 1})', ONES, "entries for the tasks a; got tasks without names"),
    ('uw(kind={"a": "regression"})', ONES, "`kind` has entries for the tasks a; got tasks without names"),
    ('uw(kind={"a": "regression"})', (ONES, "bcd"), "`kind` has entries for the tasks a; got b, c, d in the batch"),
    ("stch(weights=[0, 0, 0])", ONES, "must not all be zero"),
    ("stch(weights=[1])", ONES, f"stch: `weights` {NUMBER} 1 for 3"),
    ("stch(log=true, weights=[1, 1, 1])", ONES, "are not part of the formula"),
    ("pbi(preferences=[0, 0, 0])", ONES, "pbi: `preferences` must not all be zero"),
    ("cosmos(preferences=[1])", ONES, f"cosmos: `preferences` {NUMBER} 1 for 3"),
    ("cosmos(scale='paper')", [1e-300, 2e-300], "cosmos: weights N .* must be at most.*task 1"),
    ("famo(lowest=[0])", ONES, f"famo: `lowest` {NUMBER} 1 for 3"),
    ("graddrop(leak=[0, 1])", ONES, f"{NUMBER} 2 for 3 tasks"),
    ("gradnorm(parameters='body.*')", ONES, "`parameters` must match"),
    (
        "pcd(primary=3)",
        ONES,
        "exactly one task in every batch; got 3, but .* the slots 0, 1, 2 and no domains",
    ),
    ("pcd(primary='a')", (ONES, "aab"), "exactly one task in every batch; got 'a', but .* the domains a, a, b"),
    ("pcd(primary='c')", (ONES, "aab"), "got 'c', but .* the domains a, a, b"),
    ("pcd(primary='a')", ONES, "got 'a', but .* no domains"),
    ("pcd(tau=[0.1, 0.2])", ONES, "one number per task; got 2 for 3 tasks"),
    ("sago(primary='x')", ONES, "sago: `primary` must be .* a task in every batch; got 'x'"),
    ("metabalance(primary='x')", ONES, "metabalance: `primary` must be the slot or the domain .* got 'x'"),
    ("lra(primary='x')", (ONES, "cab"), "`primary`.*'x'.*slots 0, 1, 2 and the domains a, b, c"),
    ("lra(primary=7)", ONES, "slots 0, 1, 2 and no domains"),
    ("cr_mogm(method='none')", ONES, "cr_mogm: .*`method` must name one homogenizer; got 'none'"),
    ("cr_mogm(method='isi')", ONES, "cr_mogm: .*acts by `mix` alone; 'isi' acts by `attach`"),
    ("cr_mogm(method=\"mgda(normalize='loss')\")", [0.0, 1.0], r"mgda\(normalize='loss'\): losses must be positive"),
    ("tracked(method='none')", ONES, "tracked: .*`method` must name one homogenizer; got 'none'"),
    ("tracked(method='rotate')", ONES, "tracked: .*acts by `mix` or `rows` alone; 'rotate' acts by `transform`"),
    ("tracked(method='tracked')", ONES, "tracked: .*acts by `mix` or `rows` alone; 'tracked' acts by `choose`"),
    ("tracked(method=\"mgda(on='features')\")", ONES, "tracked: .*reads features"),
    ("tracked(method='ntk')", ONES, "tracked: .*'ntk' reads traces of kernels"),
    ("tracked(method='trimmed_mean', every=2)", ONES, "tracked: .*`every` must be 1 for 'trimmed_mean'"),
    ("reweight + tracked(method='static')", ONES, r"reweight.* acts on the rows .*write tracked.method='reweight'"),
    ("krum(n_byzantine=3)", [1.0] * 5, "krum: `n_byzantine` must be at most 2 for 5 tasks"),
    ("krum(n_selected=6)", [1.0] * 5, "krum: `n_selected` must be at most the number of tasks, 5"),
    ("trimmed_mean(trim=1)", [1.0], "must leave at least one task: 1 of 1 are removed at each end"),
    ("rotate(pool='class')", ONES, "a plane has one; use parameterization='geodesic'"),
    ("reweight(variant='paper', solver='fixed_point')", ONES, "only fixed point is zero"),
    ("reweight(solver='fixed_point')", [-1.0, 1.0], "must not be negative unless beta=0"),
    ("reweight", None, "requires the losses"),
    ("db_mtl", None, "requires the losses of the tasks"),
    ("ldc_mtl(scale='paper')", [1.0, 1e-300], "ldc_mtl: weights N .* must be at most.*task 1"),
    ("go4align(scale='paper')", [1e300, 1e-300], "go4align: weights p ΣL / L, averaged by group, .* at most.*task 1"),
    ("go4align(lr=1e4)", [1e305, 2e305], r"go4align: `lr` times a loss must be finite; task 0 has 1e\+305"),
]


@pytest.mark.parametrize(("text", "losses", "message"), UNUSABLE)
def test_a_value_that_does_not_fit_the_batch_raises(text, losses, message):
    losses, names = losses if isinstance(losses, tuple) else (losses, None)
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(text).combine(torch.eye(len(losses or ONES)), losses, domains=names and [*names])
