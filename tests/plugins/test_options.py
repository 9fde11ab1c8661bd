"""Values of options that do not fit each other, or the tasks and losses of a batch."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError

ONES = [1.0, 1.0, 1.0]
NUMBER = "must hold one number per task; got"
# For the losses of a step, which may have names; None: a step without losses.
UNUSABLE = [
    ("static(weights=[1, 2])", ONES, rf"`weights` {NUMBER} 2 for 3 tasks\."),
    ("static(weights=[0, 0, 0])", ONES, "not all be zero"),
    ('static(weights={"a": 1})', ONES, "entries for the tasks a; got tasks without names"),
    ('uw(kind={"a": "regression"})', (ONES, "bcd"), "`kind` has entries for the tasks a; got b, c, d in the batch"),
    ("stch(log=true, weights=[1, 1, 1])", ONES, "are not part of the formula"),
    ("pbi(preferences=[0, 0, 0])", ONES, "`preferences` must not all be zero"),
    ("cosmos(scale='paper')", [1e-300, 2e-300], "weights N .* must be at most.*task 1"),
    ("graddrop(leak=[0, 1])", ONES, f"{NUMBER} 2 for 3 tasks"),
    ("gradnorm(parameters='body.*')", ONES, "`parameters` must match"),
    ("pcd(primary=3)", ONES, "exactly one task in every batch; got 3, but .* the slots 0, 1, 2 and no domains"),
    ("pcd(primary='a')", (ONES, "aab"), "exactly one task in every batch; got 'a', but .* the domains a, a, b"),
    ("pcd(primary='a')", ONES, "got 'a', but .* no domains"),
    ("sago(primary='x')", ONES, "`primary` must be .* a task in every batch; got 'x'"),
    ("metabalance(primary='x')", ONES, "`primary` must be the slot or the domain .* got 'x'"),
    ("lra(primary='x')", (ONES, "cab"), "`primary`.*'x'.*slots 0, 1, 2 and the domains a, b, c"),
    ("cr_mogm(method='none')", ONES, "cr_mogm: .*`method` must name one homogenizer; got 'none'"),
    ("cr_mogm(method='isi')", ONES, "cr_mogm: .*acts by `mix` alone; 'isi' acts by `attach`"),
    ("cr_mogm(method=\"mgda(normalize='loss')\")", [0.0, 1.0], "losses must be positive, because normalize='loss'"),
    ("tracked(method='rotate')", ONES, "tracked: .*acts by `mix` or `rows` alone; 'rotate' acts by `transform`"),
    ("tracked(method=\"mgda(on='features')\")", ONES, "tracked: .*reads features"),
    ("tracked(method='ntk')", ONES, "tracked: .*'ntk' reads traces of kernels"),
    ("tracked(method='trimmed_mean', every=2)", ONES, "tracked: .*`every` must be 1 for 'trimmed_mean'"),
    ("reweight + tracked(method='static')", ONES, r"reweight.* acts on the rows .*write tracked.method='reweight'"),
    ("krum(n_byzantine=3)", [1.0] * 5, "`n_byzantine` must be at most 2 for 5 tasks"),
    ("krum(n_selected=6)", [1.0] * 5, "`n_selected` must be at most the number of tasks, 5"),
    ("trimmed_mean(trim=1)", [1.0], "must leave at least one task: 1 of 1 are removed at each end"),
    ("rotate(pool='sample')", ONES, "a plane has one; use parameterization='geodesic'"),
    ("reweight(variant='paper', solver='fixed_point')", ONES, "only fixed point is zero"),
    ("reweight(solver='fixed_point')", [-1.0, 1.0], "must not be negative unless beta=0"),
    ("reweight", None, "requires the losses"),
    ("go4align(scale='paper')", [1e300, 1e-300], "weights p ΣL / L, averaged by group, .* at most.*task 1"),
    ("go4align(lr=1e4)", [1e305, 2e305], r"`lr` times a loss must be finite; task 0 has 1e\+305"),
]


@pytest.mark.parametrize(("text", "losses", "message"), UNUSABLE)
def test_a_value_that_does_not_fit_the_batch_raises(text, losses, message):
    losses, names = losses if isinstance(losses, tuple) else (losses, None)
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(text).combine(torch.eye(len(losses or ONES)), losses, domains=names and [*names])
