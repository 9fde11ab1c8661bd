"""The bridge to TorchJD against TorchJD itself."""

import copy
import io
import pickle
import re
import subprocess
import sys

import pytest
import torch
import torchjd.aggregation
from torchjd.linalg import QuadprogProjector

import gradhomog
from gradhomog import NotDifferentiableError, OptionError, PluginRunError
from gradhomog.step.step import seeded_generator
from gradhomog.testing import parametrize_with_checks

# cvxpy warns that NashMTL's problems do not get faster, and sometimes that their solution may be inaccurate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are solving a parameterized problem that is not DPP:UserWarning"),
    pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning"),
]

TASKS = 4


def vector(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


# By class name: options of the bridge for four tasks, and the same aggregator constructed for a dtype.
AGGREGATORS = {
    "AlignedMTL": ({"scale_mode": "rmse"}, lambda kind, dtype: kind(scale_mode="rmse")),
    "CAGrad": ({}, lambda kind, dtype: kind(c=0.4)),
    "ConFIG": ({"pref_vector": [1, 2, 1, 0.5]}, lambda kind, dtype: kind(vector(1, 2, 1, 0.5, dtype=dtype))),
    "Constant": ({"weights": [1, 2, 3, 0]}, lambda kind, dtype: kind(vector(1, 2, 3, 0, dtype=dtype))),
    "DualProj": ({}, lambda kind, dtype: kind()),
    "ExcessMTL": ({"robust_step_size": 0.5}, lambda kind, dtype: kind(robust_step_size=0.5)),
    "FairGrad": ({}, lambda kind, dtype: kind(alpha=2.0)),
    "GradDrop": ({"leak": [0, 0.5, 0, 1]}, lambda kind, dtype: kind(leak=vector(0, 0.5, 0, 1, dtype=dtype))),
    "GradVac": ({"beta": 0.3}, lambda kind, dtype: kind(beta=0.3)),
    "IMTLG": ({}, lambda kind, dtype: kind()),
    "Krum": ({"n_byzantine": 1, "n_selected": 2}, lambda kind, dtype: kind(n_byzantine=1, n_selected=2)),
    "MGDA": ({"max_iters": 20}, lambda kind, dtype: kind(max_iters=20)),
    "Mean": ({}, lambda kind, dtype: kind()),
    "NashMTL": ({"optim_niter": 10}, lambda kind, dtype: kind(n_tasks=TASKS, optim_niter=10)),
    "PCD": ({"tau": [0.1, 0.2, 0.3]}, lambda kind, dtype: kind(tau=vector(0.1, 0.2, 0.3, dtype=dtype))),
    "PCGrad": ({}, lambda kind, dtype: kind()),
    "Random": ({}, lambda kind, dtype: kind()),
    "Sum": ({}, lambda kind, dtype: kind()),
    "TrimmedMean": ({"trim_number": 1}, lambda kind, dtype: kind(trim_number=1)),
    "UPGrad": ({"projector": {"reg_eps": 1e-6}}, lambda kind, dtype: kind(projector=QuadprogProjector(reg_eps=1e-6))),
}
STATEFUL = ["ExcessMTL", "GradVac", "PCD"]
every_aggregator = pytest.mark.parametrize("name", AGGREGATORS)


def pipeline(name, *, scale="mean", seed=0, options=None):
    given = AGGREGATORS[name][0] if options is None else options
    return gradhomog.pipeline([("torchjd", {"aggregator": name, "options": given, "scale": scale, "seed": seed})])


def steps(count=4, tasks=TASKS, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tasks, 7, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]


def directions_of_torchjd(name, jacobians, seed=0):
    """Directions of one aggregator over several steps, its random numbers seeded as the bridge seeds them."""

    def make():
        return AGGREGATORS[name][1](getattr(torchjd.aggregation, name), jacobians[0].dtype)

    aggregator, found = make(), []
    for number, jacobian in enumerate(jacobians):
        if name == "NashMTL":  # its state cannot be saved: it restarts in every step
            aggregator = make()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeded_generator(seed, number).initial_seed())
            found.append(aggregator(jacobian))
    return found


def test_the_table_of_this_file_holds_every_aggregator_of_torchjd():
    bases = {"Aggregator", "WeightedAggregator", "GramianWeightedAggregator"}
    exported = {name: getattr(torchjd.aggregation, name) for name in torchjd.aggregation.__all__}
    offered = {name for name, kind in exported.items() if issubclass(kind, torchjd.aggregation.Aggregator)} - bases
    assert set(AGGREGATORS) == offered


@every_aggregator
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_direction_of_every_step_is_the_aggregators_own(name, dtype):
    pipe, jacobians = pipeline(name, scale="paper", seed=3), steps(dtype=dtype)
    found = [pipe.combine(jacobian) for jacobian in jacobians]
    tight = {"rtol": 1e-12, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found, directions_of_torchjd(name, jacobians, seed=3), **tight)


@every_aggregator
def test_at_the_mean_scale_it_is_the_same_but_for_one_factor(name):
    factor = directions_of_torchjd(name, [torch.ones(TASKS, 1, dtype=torch.float64)])[0].item()
    pipe = pipeline(name, seed=3)
    found = [factor * pipe.combine(jacobian) for jacobian in steps(3)]
    torch.testing.assert_close(found, directions_of_torchjd(name, steps(3), seed=3), rtol=1e-8, atol=1e-10)


@every_aggregator
def test_rows_and_global_generators_are_not_changed(name):
    pipe, before = pipeline(name), torch.get_rng_state()
    for jacobian in steps(2):
        given = jacobian.clone().requires_grad_()
        direction = pipe.combine(given)
        assert not direction.requires_grad
        assert torch.equal(given, jacobian)
    assert torch.equal(torch.get_rng_state(), before)


def through_a_file(pipe, name):
    buffer = io.BytesIO()
    torch.save(pipe.state_dict(), buffer)
    buffer.seek(0)
    fresh = pipeline(name, seed=5)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    return fresh


@every_aggregator
@pytest.mark.parametrize(
    "copied",
    [through_a_file, lambda pipe, name: copy.deepcopy(pipe), lambda pipe, name: pickle.loads(pickle.dumps(pipe))],
    ids=["state_dict", "deepcopy", "pickle"],
)
def test_a_copy_made_between_two_steps_continues_bit_for_bit_the_same(name, copied):
    pipe = pipeline(name, seed=5)
    for jacobian in steps(2):
        pipe.combine(jacobian)
    second, later = copied(pipe, name), steps(2, seed=1)
    expected = [pipe.combine(jacobian) for jacobian in later]  # before the other one, with which it shares nothing
    assert all(map(torch.equal, [second.combine(jacobian) for jacobian in later], expected))


@pytest.mark.parametrize("name", STATEFUL)
def test_state_of_another_number_of_tasks_starts_anew(name):
    pipe, three = pipeline(name, options={}), steps(1, tasks=3)[0]
    pipe.combine(steps()[0])
    fresh = pipeline(name, options={})
    fresh.combine(torch.zeros(1, 7, dtype=torch.float64))  # the random numbers of the second step, without its state
    torch.testing.assert_close(pipe.combine(three), fresh.combine(three))


def test_the_number_of_tasks_of_nash_mtl_may_change_from_step_to_step():
    pipe = pipeline("NashMTL", options={})
    for tasks in (3, 4):
        assert bool(pipe.combine(steps(1, tasks=tasks)[0]).isfinite().all())


def test_a_function_and_a_tensor_can_be_passed_from_python():
    jacobian = steps()[0]
    options = {"f": lambda purity: (purity > 0.5).double(), "leak": vector(0, 0, 0, 0)}
    expected = torch.where(jacobian.sum(0) > 0, jacobian.clamp_min(0).sum(0), jacobian.clamp_max(0).sum(0)) / TASKS
    torch.testing.assert_close(pipeline("GradDrop", options=options).combine(jacobian), expected)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Upgrad", {}, "`aggregator` must be .*got 'Upgrad'. Did you mean 'UPGrad'.*Available: AlignedMTL, CAGrad, "),
        ("SDMGradWeighting", {}, "`aggregator` must be .*Available: "),
        ("CAGrad", {"C": 1}, r"CAGrad does not accept `options`={'C': 1}: .*'C' Its signature: CAGrad\(c: "),
        ("CAGrad", {"c": "much"}, "CAGrad does not accept `options`"),
        ("CAGrad", {"c": -1}, "CAGrad does not accept `options`={'c': -1}: c must be non-negative"),
        ("Krum", {}, "Krum does not accept .*'n_byzantine'.*Its signature: Krum"),
        ("TrimmedMean", {}, "TrimmedMean does not accept .*'trim_number'"),
        ("Constant", {}, "Constant does not accept .*'weights'"),
        ("Constant", {"weights": ["a"]}, "Constant does not accept"),
        ("UPGrad", {"projector": {"eps": 3}}, "UPGrad does not accept .*'eps'"),
        ("UPGrad", {"projector": {"reg_eps": -1}}, "UPGrad does not accept .*reg_eps must be non-negative"),
        ("ExcessMTL", {"n_warmup_steps": 4}, "`n_warmup_steps` of ExcessMTL must be 0: .*cannot be saved"),
    ],
)  # fmt: skip
def test_wrong_names_and_options_raise_with_the_valid_ones(name, options, message):
    with pytest.raises(OptionError, match=message):
        pipeline(name, options=options)


def test_weights_that_sum_to_nothing_raise():
    with pytest.raises(OptionError, match=r"Constant maps \d+ identical rows to 0 times the row; the factor"):
        pipeline("Constant", options={"weights": [1, -1, 0, 0]}).combine(steps()[0])


@pytest.mark.parametrize(
    ("name", "tasks", "message"),
    [
        ("Constant", 3, "Constant of TorchJD .* raised ValueError for 3 tasks: .*should have 4 rows"),
        ("Krum", 3, "Krum of TorchJD .* raised ValueError for 3 tasks: .*at least 4 rows"),
        ("TrimmedMean", 2, "TrimmedMean of TorchJD .* raised ValueError for 2 tasks"),
    ],
)
def test_an_error_of_an_aggregator_is_reported_with_its_name_and_advice(name, tasks, message):
    with pytest.raises(PluginRunError, match=f"{message}.*Change the `options`, or use another aggregator"):
        pipeline(name).combine(steps(1, tasks=tasks)[0])


def test_no_graph_is_cut_silently():
    with pytest.raises(NotDifferentiableError):
        pipeline("MGDA").combine(steps()[0].requires_grad_(), create_graph=True)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocked", "texts", "expected"),
    [
        ("torchjd", ["torchjd"], ["refused: .*the library TorchJD cannot .*pip install 'gradhomog\\[compare\\]'"]),
        (
            "qpsolvers",
            ["torchjd", "torchjd(aggregator='MGDA')"],
            [r"refused: .*UPGrad needs packages that are not installed: .*qpsolvers.*torchjd\[full\]", "made: "],
        ),
    ],
)
def test_without_a_library_it_is_listed_and_names_the_package_to_install_when_it_is_made(blocked, texts, expected):
    source = BLOCKED.format(blocked=blocked, texts=texts)
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for line in expected:
        assert any(re.match(line, printed) for printed in result.stdout.splitlines()), result.stdout


@pytest.mark.slow
@parametrize_with_checks(["torchjd"], fast=True)
def test_by_default_it_conforms(check):
    check()
