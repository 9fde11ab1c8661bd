"""The bridge to TorchJD against TorchJD itself; and what the bridge promises where TorchJD does not."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys

import pytest
import torch
import torchjd.aggregation
from torchjd import Stateful
from torchjd.linalg import QuadprogProjector

import gradhomog
from gradhomog import (
    ConfigError,
    HomogenizerSpec,
    NotDifferentiableError,
    OptionError,
    Pipeline,
    PluginLoadError,
    PluginRunError,
)
from gradhomog.engine.member import Member
from gradhomog.registry import installed
from gradhomog.testing import parametrize_with_checks

# Of NashMTL's problems, cvxpy says that they do not get faster, and sometimes that their solution may be inaccurate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are solving a parameterized problem that is not DPP:UserWarning"),
    pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning"),
]

TASKS = 4


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


# By class name: what the bridge is told for four tasks, and the aggregator itself, made by hand.
AGGREGATORS = {
    "AlignedMTL": ({"scale_mode": "rmse"}, lambda kind: kind(scale_mode="rmse")),
    "CAGrad": ({}, lambda kind: kind(c=0.4)),
    "ConFIG": ({"pref_vector": [1, 2, 1, 0.5]}, lambda kind: kind(pref_vector=vector(1, 2, 1, 0.5))),
    "Constant": ({"weights": [1, 2, 3, 0]}, lambda kind: kind(weights=vector(1, 2, 3, 0))),
    "DualProj": ({}, lambda kind: kind()),
    "ExcessMTL": ({"n_warmup_steps": 4}, lambda kind: kind(n_warmup_steps=4)),
    "FairGrad": ({}, lambda kind: kind(alpha=2.0)),
    "GradDrop": ({"leak": [0, 0.5, 0, 1]}, lambda kind: kind(leak=vector(0, 0.5, 0, 1))),
    "GradVac": ({"beta": 0.3}, lambda kind: kind(beta=0.3)),
    "IMTLG": ({}, lambda kind: kind()),
    "Krum": ({"n_byzantine": 1, "n_selected": 2}, lambda kind: kind(n_byzantine=1, n_selected=2)),
    "MGDA": ({"max_iters": 20}, lambda kind: kind(max_iters=20)),
    "Mean": ({}, lambda kind: kind()),
    "NashMTL": ({"update_weights_every": 3}, lambda kind: kind(n_tasks=TASKS, update_weights_every=3)),
    "PCD": ({"tau": [0.1, 0.2, 0.3]}, lambda kind: kind(tau=vector(0.1, 0.2, 0.3))),
    "PCGrad": ({}, lambda kind: kind()),
    "Random": ({}, lambda kind: kind()),
    "Sum": ({}, lambda kind: kind()),
    "TrimmedMean": ({"trim_number": 1}, lambda kind: kind(trim_number=1)),
    "UPGrad": (
        {"projector": {"reg_eps": 1e-6}},
        lambda kind: kind(projector=QuadprogProjector(reg_eps=1e-6)),
    ),
}
STATEFUL = ["ExcessMTL", "GradVac", "NashMTL", "PCD"]
STOCHASTIC = ["GradDrop", "GradVac", "PCGrad", "Random"]
OTHERS = ["Constant", "Mean", "Random", "Sum", "ExcessMTL", "NashMTL", "ConFIG", "GradDrop", "TrimmedMean"]
"""Those that do not look at the Gramian."""
every_aggregator = pytest.mark.parametrize("name", AGGREGATORS)


def pipeline(name, *, scale="mean", seed=0, options=None):
    given = AGGREGATORS[name][0] if options is None else options
    return gradhomog.pipeline([("torchjd", {"aggregator": name, "options": given, "scale": scale, "seed": seed})])


def steps(count=6, tasks=TASKS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tasks, 7, generator=generator, dtype=torch.float64) for _ in range(count)]


def theirs(name, jacobians, seed=0):
    aggregator = AGGREGATORS[name][1](getattr(torchjd.aggregation, name))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [aggregator(jacobian) for jacobian in jacobians]


def test_every_aggregator_of_torchjd_is_tried_here():
    kinds = {name: getattr(torchjd.aggregation, name) for name in torchjd.aggregation.__all__}
    bases = ("Aggregator", "GramianWeightedAggregator", "WeightedAggregator")
    offered = {n: k for n, k in kinds.items() if issubclass(k, torchjd.aggregation.Aggregator) and n not in bases}
    assert set(AGGREGATORS) == set(offered)
    assert [name for name in AGGREGATORS if issubclass(offered[name], Stateful)] == STATEFUL


@every_aggregator
def test_the_direction_of_every_step_is_the_aggregators_own(name):
    pipe = pipeline(name, scale="paper", seed=3)
    found = [pipe.combine(jacobian) for jacobian in steps()]
    torch.testing.assert_close(found, theirs(name, steps(), seed=3), rtol=1e-12, atol=1e-14)


@every_aggregator
def test_at_our_scale_it_is_the_same_but_for_one_factor_that_leaves_state_and_numbers_alone(name):
    ones = torch.ones(TASKS, 1, dtype=torch.float64)
    factor = theirs(name, [ones])[0].item()
    pipe = pipeline(name, seed=3)
    found = [factor * pipe.combine(jacobian) for jacobian in steps()]
    torch.testing.assert_close(found, theirs(name, steps(), seed=3), rtol=1e-8, atol=1e-10)


@every_aggregator
@pytest.mark.parametrize("tasks", [3, 4, 5])
def test_identical_rows_of_norm_one_give_that_row(name, tasks):
    options = {"Krum": {"n_byzantine": 0}, "TrimmedMean": {"trim_number": 1}, "Constant": {"weights": [3] * tasks}}
    row = vector(0.6, -0.8, 0)
    direction = pipeline(name, options=options.get(name, {})).combine(row.repeat(tasks, 1))
    torch.testing.assert_close(direction, row, rtol=1e-7, atol=1e-7)


@every_aggregator
def test_rows_in_a_dict_give_the_direction_of_the_matrix(name):
    whole, parted = pipeline(name), pipeline(name)
    for jacobian in steps():
        direction = whole.combine(jacobian)
        parts = {"weight": jacobian[:, :4].reshape(TASKS, 2, 2), "scalar": jacobian[:, 4], "bias": jacobian[:, 5:]}
        found = parted.combine(parts)
        assert {key: value.shape for key, value in found.items()} == {
            key: value.shape[1:] for key, value in parts.items()
        }
        torch.testing.assert_close(torch.cat([value.flatten() for value in found.values()]), direction)


@every_aggregator
def test_rows_and_global_generators_stay_as_they_are(name):
    pipe, before = pipeline(name), torch.get_rng_state()
    for jacobian in steps(2):
        given = jacobian.clone().requires_grad_()
        direction = pipe.combine(given)
        assert not direction.requires_grad
        assert torch.equal(given, jacobian)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", STOCHASTIC)
def test_another_seed_draws_other_numbers(name):
    conflicting = [jacobian - 0.8 * jacobian.mean(0) for jacobian in steps(3)]
    one, same, other = ([pipe.combine(j) for j in conflicting] for pipe in (pipeline(name, seed=s) for s in (1, 1, 2)))
    assert all(map(torch.equal, one, same))
    assert not all(map(torch.equal, one, other))


def through_a_file(pipe, name):
    buffer = io.BytesIO()
    torch.save(pipe.state_dict(), buffer)
    buffer.seek(0)
    fresh = pipeline(name, seed=99)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    return fresh


@pytest.mark.parametrize(
    ("name", "after"), [*((name, 2) for name in AGGREGATORS), *((name, after) for name in STATEFUL for after in (0, 5))]
)
@pytest.mark.parametrize(
    "copied",
    [through_a_file, lambda pipe, name: copy.deepcopy(pipe), lambda pipe, name: pickle.loads(pickle.dumps(pipe))],
    ids=["state_dict", "deepcopy", "pickle"],
)
def test_what_was_copied_between_two_steps_goes_on_bit_for_bit_the_same(name, after, copied):
    pipe = pipeline(name, seed=5)
    for jacobian in steps(after):
        pipe.combine(jacobian)
    second = copied(pipe, name)
    later = steps(4, seed=1)
    expected = [pipe.combine(jacobian) for jacobian in later]  # before the other one: they must share nothing
    assert all(map(torch.equal, [second.combine(jacobian) for jacobian in later], expected))


def test_the_state_of_another_aggregator_is_refused():
    state = pipeline("PCD").state_dict()
    with pytest.raises(ConfigError, match=r"the state of GradVac holds .*found .*_sq_norm_ema"):
        pipeline("GradVac").load_state_dict(state)


def test_a_saved_state_is_plain_and_shares_no_memory():
    pipe = pipeline("ExcessMTL")
    pipe.combine(steps()[0])
    state = pipe.state_dict()
    before = copy.deepcopy(state)
    pipe.combine(steps()[1])
    [saved], [was] = (list(each.values()) for each in (state, before))
    assert torch.equal(saved["memory"]["_sq_grad_sum"], was["memory"]["_sq_grad_sum"])
    assert {type(value) for value in saved["memory"].values()} <= {torch.Tensor, int, float, type(None)}


# There, Random draws float32 numbers, and weights and preferences have to be of the dtype of the rows.
@pytest.mark.parametrize("name", [name for name in AGGREGATORS if name not in ("ConFIG", "Constant", "Random")])
def test_float32_rows_give_what_torchjd_gives_up_to_rounding(name):
    pipe, jacobians = pipeline(name, scale="paper"), [jacobian.float() for jacobian in steps(3)]
    found = [pipe.combine(jacobian) for jacobian in jacobians]
    torch.testing.assert_close(found, theirs(name, jacobians), rtol=1e-3, atol=1e-4)


def test_preferences_follow_the_rows_in_their_dtype():
    jacobian = steps()[0].float()
    expected = torchjd.aggregation.ConFIG(pref_vector=vector(1, 2, 1, 0.5).float())(jacobian)
    torch.testing.assert_close(pipeline("ConFIG", scale="paper").combine(jacobian), expected)


def test_dependent_float32_rows_have_the_rank_that_torchjd_sees():
    first = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    jacobian = torch.cat([first, first[:1] + first[1:2]])  # rank three, but for the rounding of its Gramian
    expected = torchjd.aggregation.AlignedMTL()(jacobian)
    found = pipeline("AlignedMTL", options={}).combine(jacobian)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        *((name, set()) for name in ("Constant", "Mean", "Random", "Sum")),
        *((name, {"gramian", "rows"}) for name in AGGREGATORS if name not in OTHERS),
        *((name, {"rows"}) for name in ("ExcessMTL", "NashMTL")),
    ],
)
def test_weights_are_asked_for_with_the_least_that_they_depend_on(name, needs):
    [homogenizer] = pipeline(name)
    spec = HomogenizerSpec(type(homogenizer), "reading what is not in `needs` is an error", needs=needs)
    found = Pipeline([Member(homogenizer, name, {}, None, spec)]).homogenize(steps()[0])
    assert torch.equal(found.direction, pipeline(name).combine(steps()[0]))
    assert (found.gramian is not None) == ("gramian" in needs)


@pytest.mark.parametrize("name", ["ConFIG", "GradDrop", "TrimmedMean"])
def test_a_direction_that_is_no_mixture_of_rows_stands_in_every_row(name):
    [homogenizer] = pipeline(name)
    assert homogenizer.overrides("rows")
    assert not homogenizer.overrides("mix")
    jacobian = steps()[0]
    rows = homogenizer.rows(jacobian)
    assert torch.equal(rows, pipeline(name).combine(jacobian).expand_as(rows))


@pytest.mark.parametrize("name", ["IMTLG", "NashMTL", "TrimmedMean"])
def test_it_stands_in_a_pipeline_with_others(name):
    given = AGGREGATORS[name][0]
    pipe = gradhomog.pipeline(
        [("static", {"weights": [1, 2, 3, 2]}), ("torchjd", {"aggregator": name, "options": given}), "mgda"]
    )
    weighted = vector(0.5, 1, 1.5, 1)[:, None] * steps()[0]
    alone = pipeline(name).homogenize(weighted)
    expected = alone.direction
    if alone.weights is not None:  # MGDA of weighted rows; of equal rows it is the row
        expected = gradhomog.pipeline("mgda").combine(alone.weights[:, None] * weighted)
    torch.testing.assert_close(pipe.combine(steps()[0]), expected)


def test_a_common_text_makes_it_with_options():
    text = "torchjd(aggregator='Krum', options={'n_byzantine': 1, 'n_selected': 2})"
    assert torch.equal(gradhomog.pipeline(text).combine(steps()[0]), pipeline("Krum").combine(steps()[0]))


def test_torchjds_thresholds_are_not_repaired():
    jacobian = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]], dtype=torch.float64)
    tiny = 1e-4 * jacobian
    assert not torch.allclose(pipeline("UPGrad", options={}).combine(jacobian), jacobian.mean(0))
    torch.testing.assert_close(pipeline("UPGrad", options={}).combine(tiny), tiny.mean(0))
    assert torch.equal(pipeline("CAGrad").combine(tiny), torch.zeros(3, dtype=torch.float64))
    scaled = pipeline("UPGrad", options={"projector": {"norm_eps": 0}}).combine(tiny)
    torch.testing.assert_close(1e4 * scaled, pipeline("UPGrad", options={}).combine(jacobian))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Upgrad", {}, "`aggregator` must be .*got 'Upgrad'. Did you mean 'UPGrad'.*There are: AlignedMTL, CAGrad, "),
        ("SDMGradWeighting", {}, "`aggregator` must be .*There are: "),
        ("CAGrad", {"C": 1}, r"CAGrad has no option 'C' in `options`. It takes: c=0.4 \(a number\), norm_eps="),
        ("CAGrad", {"norm_ep": 1}, "Did you mean 'norm_eps'"),
        ("CAGrad", {"c": "much"}, "'c' in `options` must be a number; got 'much'"),
        ("CAGrad", {"c": True}, "'c' in `options` must be a number; got True"),
        ("CAGrad", {"c": -1}, "CAGrad refuses `options`={'c': -1}: c must be non-negative"),
        ("Krum", {}, "Krum needs 'n_byzantine', which has no usual value"),
        ("Krum", {"n_byzantine": 1.5}, "must be an integer; got 1.5"),
        ("TrimmedMean", {}, "TrimmedMean needs 'trim_number'"),
        ("Constant", {}, r"Constant needs 'weights', .*It takes: weights \(a list of numbers\)"),
        ("Constant", {"weights": ["a"]}, "must be a list of numbers; got"),
        ("Constant", {"weights": 2}, "must be a list of numbers; got 2"),
        ("AlignedMTL", {"scale_mode": "max"}, "must be one of 'min', 'median', 'rmse'; got 'max'"),
        ("GradDrop", {"f": 3}, "must be a function; got 3"),
        ("UPGrad", {"projector": 3}, "must be a table of options of QuadprogProjector or none; got 3"),
        ("UPGrad", {"projector": {"eps": 3}}, "'projector' has no option 'eps'"),
        ("UPGrad", {"projector": {"reg_eps": -1}}, "UPGrad refuses .*reg_eps must be non-negative"),
        ("Mean", {"weights": [1]}, "Mean has no option 'weights' in `options`. It takes: no options"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_with_what_does(name, options, message):
    with pytest.raises(OptionError, match=message):
        pipeline(name, options=options)


def test_a_function_and_a_tensor_can_be_given_from_python():
    jacobian = steps()[0]
    options = {"f": lambda purity: (purity > 0.5).double(), "leak": vector(0, 0, 0, 0)}
    expected = torch.where(jacobian.sum(0) > 0, jacobian.clamp_min(0).sum(0), jacobian.clamp_max(0).sum(0)) / TASKS
    torch.testing.assert_close(pipeline("GradDrop", options=options).combine(jacobian), expected)


def test_weights_that_sum_to_nothing_have_a_scale_of_their_own_only():
    options = {"weights": [1, -1, 0, 0]}
    with pytest.raises(OptionError, match=r"Constant makes 0 times their row of 4 identical rows.*scale='paper'"):
        pipeline("Constant", options=options).combine(steps()[0])
    found = pipeline("Constant", options=options, scale="paper").combine(steps()[0])
    torch.testing.assert_close(found, steps()[0][0] - steps()[0][1])


@pytest.mark.parametrize(
    ("name", "jacobian", "message"),
    [
        ("Constant", steps(tasks=3)[0], "Constant of TorchJD .* raised ValueError for 3 tasks: .*should have 4 rows"),
        ("Krum", steps(tasks=3)[0], "Krum of TorchJD .* raised ValueError for 3 tasks: .*at least 4 rows"),
        ("TrimmedMean", steps(tasks=2)[0], "TrimmedMean of TorchJD .* raised ValueError for 2 tasks"),
        ("ConFIG", steps()[0].bfloat16(), "ConFIG of TorchJD .* raised .* for 4 tasks"),
    ],
)
def test_what_an_aggregator_raises_is_told_with_its_name_and_what_to_do(name, jacobian, message):
    with pytest.raises(PluginRunError, match=f"{message}.*change the `options`, or use another aggregator"):
        pipeline(name, scale="paper").combine(jacobian)


def test_an_answer_that_is_not_finite_is_told_with_its_name():
    with pytest.raises(PluginRunError, match=r"Constant of TorchJD .* returned NaN or infinity for 4 tasks"):
        pipeline("Constant", scale="paper", options={"weights": [1, float("nan"), 1, 1]}).combine(steps()[0])


def test_nash_mtl_is_told_the_number_of_tasks_once():
    pipe = pipeline("NashMTL")
    pipe.combine(steps(tasks=3)[0])
    with pytest.raises(
        OptionError, match="NashMTL needs the same number of tasks at every step: 3 at the first, 4 now"
    ):
        pipe.combine(steps()[0])


def test_no_graph_is_cut_in_silence():
    with pytest.raises(NotDifferentiableError):
        pipeline("MGDA").combine(steps()[0].requires_grad_(), create_graph=True)


def test_a_stateful_aggregator_that_the_bridge_does_not_know_is_refused(monkeypatch):
    class Newer(torchjd.aggregation.Mean, Stateful):
        def reset(self) -> None: ...

    monkeypatch.setattr(torchjd.aggregation, "Mean", Newer)
    with pytest.raises(PluginLoadError, match=r"keeps the state of Mean where .* does not look for it"):
        pipeline("Mean")


BLOCKED = """
import sys
sys.modules[{blocked!r}] = None
import gradhomog
from gradhomog.cli import main
assert main(["list"]) == 0
assert main(["show", "torchjd"]) == 0
assert "torchjd.aggregation" not in sys.modules
for text in {texts!r}:
    try:
        gradhomog.pipeline(text)
    except gradhomog.PluginLoadError as error:
        print("refused:", error)
    else:
        print("made:", text)
"""


@pytest.mark.parametrize(
    ("blocked", "texts", "expected"),
    [
        ("torchjd", ["torchjd"], ["refused: torchjd: the library TorchJD .*pip install 'gradhomog\\[compare\\]'"]),
        (
            "qpsolvers",
            ["torchjd", "torchjd(aggregator='MGDA')"],
            [r"refused: torchjd: UPGrad needs packages that are not installed: .*qpsolvers.*torchjd\[full\]", "made: "],
        ),
    ],
)
def test_without_a_library_it_is_listed_and_shown_and_says_what_to_install_when_it_is_made(blocked, texts, expected):
    source = BLOCKED.format(blocked=blocked, texts=texts)
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for line in expected:
        assert any(re.match(line, printed) for printed in result.stdout.splitlines()), result.stdout


def test_it_claims_what_the_bridge_itself_keeps():
    assert installed().load("homogenizers", "torchjd")[1].traits == {"stateful", "stochastic"}


@parametrize_with_checks(["torchjd"])
def test_by_default_it_conforms(check):
    check()


BY_THE_BRIDGE = (
    "dict_rows", "input_untouched", "global_generators_untouched", "same_seed_same_answer", "stochastic", "resumes_*",
    "stateful",
)  # fmt: skip


@parametrize_with_checks(
    [("torchjd", {"aggregator": name, "options": options}) for name, (options, _) in AGGREGATORS.items()],
    only=BY_THE_BRIDGE,
)
def test_with_every_aggregator_it_keeps_what_the_bridge_sees_to(check):
    check()
