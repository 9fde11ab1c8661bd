"""The pipeline: composition, statistics, policies, state, and errors that name who did it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from torch import nn

import gradhomog
from gradhomog import (
    ConfigError,
    DataError,
    Homogenizer,
    HomogenizerSpec,
    NonfiniteError,
    NotDifferentiableError,
    OptionError,
    PluginRunError,
)
from gradhomog.engine.member import Member
from gradhomog.evidence import TaskKey
from gradhomog.pipelines import Pipeline
from gradhomog.testing import jacobians


class Weights(Homogenizer):
    def __init__(self, *weights):
        self.weights = torch.tensor(weights, dtype=torch.float64)

    def mix(self, evidence):
        return self.weights


class Matrix(Weights):
    """Returns a mixing matrix and remembers the Gramian that it saw."""

    def mix(self, evidence):
        self.seen = evidence.gramian()
        return self.weights


class Doubled(Homogenizer):
    def rows(self, jacobian):
        if isinstance(jacobian, torch.Tensor):
            return 2 * jacobian
        return {name: 2 * value for name, value in jacobian.items()}


ROWS = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]])
C = ((0.5, 0.5), (-1.0, 2.0))
D = ((1.0, 3.0), (0.0, 1.0))


def in_dict(rows):
    return {"weight": rows[:, :2].reshape(len(rows), 2, 1), "bias": rows[:, 2]}


def flat(direction):
    return torch.cat([direction["weight"].flatten(), direction["bias"].flatten()])


@given(jacobians())
def test_empty_pipeline_is_the_mean_of_the_rows(rows):
    rounding = {"rtol": 1e-12, "atol": 1e-14 * float(rows.abs().max())}
    for text in ("none", "", None, []):
        torch.testing.assert_close(gradhomog.pipeline(text).combine(rows), rows.mean(0), **rounding)
        torch.testing.assert_close(gradhomog.pipeline(text).combine({"a": rows})["a"], rows.mean(0), **rounding)


def test_mixing_matrices_compose_by_multiplication_and_the_second_sees_the_mixed_gramian():
    first, second = Matrix(*C), Matrix(*D)
    direction = gradhomog.pipeline([first, second]).combine(ROWS)
    c, d, rows = torch.tensor(C, dtype=torch.float64), torch.tensor(D, dtype=torch.float64), ROWS.double()
    torch.testing.assert_close(direction, (d @ c @ rows).mean(0).float())
    torch.testing.assert_close(first.seen, rows @ rows.T)
    torch.testing.assert_close(second.seen, c @ rows @ rows.T @ c.T)


def test_a_rows_stage_between_mixings_gets_the_mixed_rows_and_the_next_gramian_is_of_what_it_returned():
    last = Matrix(*D)
    direction = gradhomog.pipeline([Matrix(*C), Doubled(), last]).combine(ROWS)
    mixed = 2 * torch.tensor(C, dtype=torch.float64) @ ROWS.double()
    torch.testing.assert_close(last.seen, mixed @ mixed.T)
    torch.testing.assert_close(direction, (torch.tensor(D).double() @ mixed).mean(0).float())


@pytest.mark.parametrize(
    "members", [["pcgrad(order='fixed')"], [Weights(1, 3)], [Doubled()], [Doubled(), Weights(2, 0), "mgda"]]
)
def test_a_dict_of_rows_gives_the_direction_of_the_concatenated_matrix(members):
    matrix = gradhomog.pipeline(copy.deepcopy(members)).combine(ROWS)
    by_name = gradhomog.pipeline(members).combine(in_dict(ROWS))
    torch.testing.assert_close(flat(by_name), matrix)


def test_statistics_are_computed_once_for_all_who_read_them(monkeypatch):
    calls = []
    original = gradhomog.rows.block_gramians
    monkeypatch.setattr(gradhomog.rows, "block_gramians", lambda rows: calls.append(1) or original(rows))
    gradhomog.pipeline("pcgrad + mgda + gradnorm + pcgrad").homogenize(ROWS, torch.ones(2), inspect=True)
    assert len(calls) == 1


def test_a_pipeline_without_need_of_the_gramian_does_not_compute_it(monkeypatch):
    monkeypatch.setattr(gradhomog.rows, "block_gramians", lambda rows: pytest.fail("computed"))
    gradhomog.pipeline("static(weights=[1, 2]) + gradnorm").combine(ROWS, losses=[1.0, 2.0])


def test_reading_an_undeclared_statistic_is_an_error_that_says_what_to_declare():
    spec = HomogenizerSpec(factory=Matrix, summary="", needs=frozenset({"losses"}))
    pipe = Pipeline([Member(Matrix(*C), "greedy", {}, None, spec)])
    with pytest.raises(PluginRunError, match=r"reads `gramian`.*Add 'gramian' to `needs`"):
        pipe.combine(ROWS)


def test_an_object_may_need_less_than_its_plugin_and_not_more(monkeypatch):
    spec = HomogenizerSpec(factory=Weights, summary="", needs={"gramian", "norms"})
    modest = Weights(1, 3)
    modest.needs = {"norms"}
    monkeypatch.setattr(gradhomog.rows, "block_gramians", lambda rows: pytest.fail("computed"))
    Pipeline([Member(modest, "modest", {}, None, spec)]).combine(ROWS)
    modest.needs = {"losses"}
    with pytest.raises(PluginRunError, match=r"sets `needs` to \['losses'\].*Add \['losses'\] to `needs`"):
        Member(modest, "modest", {}, None, spec)


def test_weights_reported_are_each_rows_share_in_the_direction():
    result = gradhomog.pipeline([Matrix(*C), Weights(1, 3)]).homogenize(ROWS)
    torch.testing.assert_close(result.direction, ((result.weights @ ROWS.double()) / 2).float())
    assert gradhomog.pipeline([Doubled()]).homogenize(ROWS).weights is None
    assert gradhomog.pipeline(None).homogenize(ROWS).weights.tolist() == [1.0, 1.0]


def test_combine_leaves_rows_and_graph_alone_unless_asked():
    rows = ROWS.clone().requires_grad_()
    direction = gradhomog.pipeline("pcgrad").combine(rows)
    assert not direction.requires_grad
    assert torch.equal(rows, ROWS)
    assert gradhomog.pipeline("pcgrad").combine(rows, create_graph=True).requires_grad


def test_create_graph_is_refused_by_name_where_a_member_does_not_claim_it():
    with pytest.raises(NotDifferentiableError, match="Weights is not differentiable"):
        gradhomog.pipeline(["pcgrad", Weights(1, 1)]).combine(ROWS, create_graph=True)


# -- NaN and infinity ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["none", "pcgrad", "gradnorm", "static(weights=[1, 2, 3])", "mgda"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_nonfinite_row_raises_with_task_domain_and_parameter_and_changes_no_state(text, value):
    pipe = gradhomog.pipeline(text)
    before = copy.deepcopy(pipe.state_dict())
    rows = in_dict(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, value], [0.0, 0.0, 1.0]]))
    with pytest.raises(NonfiniteError, match=r"task 1 of domain b is not finite: its gradient is not finite in bias"):
        pipe.combine(rows, losses=[1.0, 1.0, 1.0], domains=["a", "b", "c"])
    assert str(pipe.state_dict()) == str(before)


def test_a_nonfinite_loss_raises():
    with pytest.raises(NonfiniteError, match="task 0 is not finite: its loss is nan"):
        gradhomog.pipeline("none").combine(ROWS, losses=[float("nan"), 1.0])


@pytest.mark.parametrize("text", ["none", "pcgrad(order='fixed')", "mgda", "static(weights=[1, 9, 1])"])
def test_dropping_a_nonfinite_task_gives_the_step_of_the_others(text):
    rows = torch.tensor([[1.0, 2.0, 0.0], [float("nan"), 0.0, 0.0], [0.0, -1.0, 3.0]])
    result = gradhomog.pipeline(text, nonfinite="drop").homogenize(rows, torch.ones(3))
    assert result.tasks == (0, 2)
    others = gradhomog.pipeline(text.replace("1, 9, 1", "1, 1")).combine(rows[[0, 2]])
    assert torch.equal(result.direction, others)


def test_dropping_keeps_state_with_the_tasks_that_are_left():
    pipe = gradhomog.pipeline("gradnorm(lr=0.1, alpha=0)", nonfinite="drop")
    rows = torch.tensor([[float("nan"), 0.0], [0.0, 1.0], [5.0, 0.0]])
    pipe.combine(rows, losses=[1.0, 1.0, 1.0])
    (state,) = pipe.state_dict().values()
    assert set(state["weights"]) == {"1", "2"}
    assert state["weights"]["1"] > state["weights"]["2"]


def test_when_every_task_is_lost_even_drop_raises():
    with pytest.raises(NonfiniteError):
        gradhomog.pipeline("none", nonfinite="drop").combine(torch.full((2, 2), float("nan")))


# -- faulty members --------------------------------------------------------------------------------------------------


def faulty(stage, function):
    return type("Faulty", (Homogenizer,), {stage: function})()


@pytest.mark.parametrize(
    ("stage", "function", "message"),
    [
        ("mix", lambda self, e: 1 / 0, r"Faulty raised in `mix`: ZeroDivisionError"),
        ("mix", lambda self, e: torch.ones(5), r"weights of shape \[2\] or a matrix \[2, 2\]; got a tensor \(5,\)"),
        ("mix", lambda self, e: [1.0, 1.0], r"got list"),
        ("mix", lambda self, e: torch.tensor([1.0, float("nan")]), r"NaN or infinity from `mix`"),
        ("mix", lambda self, e: torch.ones(2, requires_grad=True), r"with a graph"),
        ("rows", lambda self, j: j[:1], r"from `rows`.*got a tensor \(1, 3\)"),
        ("rows", lambda self, j: j.double(), r"float64"),
        ("update", lambda self, e: {}["x"], r"raised in `update`: KeyError"),
    ],
)
def test_a_faulty_stage_is_told_by_name_and_stage(stage, function, message):
    with pytest.raises(PluginRunError, match=message):
        gradhomog.pipeline([faulty(stage, function)]).combine(ROWS)


def test_a_transform_that_changes_the_shape_is_refused():
    with pytest.raises(
        PluginRunError, match=r"features of shape \(1, 4, 3\), torch.float32 on cpu; got a tensor \(1, 4\)"
    ):
        gradhomog.pipeline([faulty("transform", lambda self, z, keys: z[..., 0])]).transform(
            torch.ones(1, 4, 3), [TaskKey(0)]
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"losses": torch.ones(3)}, OptionError, r"`losses` must have shape \[2\].*got \(3,\)"),
        ({"domains": ["a"]}, OptionError, r"one domain for each of the 2 tasks"),
    ],
)
def test_arguments_that_do_not_fit_the_rows_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        gradhomog.pipeline("none").combine(ROWS, **arguments)


def test_missing_losses_are_asked_for_by_who_needs_them():
    with pytest.raises(OptionError, match=r"'gradnorm' of gradhomog .* needs the tasks' losses"):
        gradhomog.pipeline("gradnorm").combine(ROWS)


def test_losses_may_be_a_list_of_tensors_with_a_graph():
    weight = torch.tensor(2.0, requires_grad=True)
    losses = [weight * 1, weight * 2]
    assert torch.equal(gradhomog.pipeline("gradnorm").combine(ROWS, losses=losses), ROWS.mean(0))


def test_an_object_twice_in_a_pipeline_is_refused():
    one = Weights(1, 1)
    with pytest.raises(OptionError, match="same homogenizer object twice"):
        gradhomog.pipeline([one, one])


def test_no_rows_are_refused():
    with pytest.raises(DataError):
        gradhomog.pipeline("none").combine(torch.ones(3))


# -- attach and transform --------------------------------------------------------------------------------------------


class Noted(Homogenizer):
    """Adds one to the encoder's output while attached."""

    def attach(self, encoder):
        return [encoder.register_forward_hook(lambda module, inputs, output: output + 1)]


def test_attached_changes_the_encoder_within_the_context_only_even_if_it_raises():
    encoder = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    plain = encoder(x)
    pipe = gradhomog.pipeline([Noted(), Noted()])

    def use_and_fail():
        with pipe.attached(encoder):
            torch.testing.assert_close(encoder(x), plain + 2)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        use_and_fail()
    assert torch.equal(encoder(x), plain)


class Shifted(Homogenizer):
    def __init__(self, amount):
        self.amount = amount

    def transform(self, features, keys):
        return features + self.amount

    def update(self, evidence):
        self.seen = (evidence.features.clone(), evidence.feature_cotangents.clone())


def test_each_transform_learns_from_its_own_input_and_the_cotangent_of_its_own_output():
    first, second = Shifted(1.0), Shifted(10.0)
    pipe = gradhomog.pipeline([first, second])
    taps = pipe.transform(torch.zeros(2, 1, 3), [TaskKey(0), TaskKey(1)])
    assert [float(tap.mean()) for tap in taps] == [0.0, 1.0, 11.0]
    cotangents = [torch.full((2, 1, 3), float(i)) for i in range(3)]
    pipe.homogenize(ROWS, features=taps, feature_cotangents=cotangents)
    assert (float(first.seen[0].mean()), float(first.seen[1].mean())) == (0.0, 1.0)
    assert (float(second.seen[0].mean()), float(second.seen[1].mean())) == (1.0, 2.0)


# -- state and text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["pcgrad", "gradnorm", "static + pcgrad(seed=3) + gradnorm(alpha=0.5)", "none"])
def test_saved_and_loaded_into_a_fresh_pipeline_everything_goes_on_bit_for_bit(text, tmp_path):
    generator = torch.Generator().manual_seed(0)

    def step(pipe):
        rows = torch.randn(5, 7, generator=generator)
        return pipe.combine(rows, losses=torch.rand(5, generator=generator) + 0.1)

    pipe = gradhomog.pipeline(text)
    for _ in range(3):
        step(pipe)
    torch.save(pipe.state_dict(), tmp_path / "state.pt")
    fresh = gradhomog.pipeline(text)
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    copied = copy.deepcopy(pipe)
    for _ in range(3):
        random = generator.get_state()
        expected = step(pipe)
        for other in (fresh, copied):
            generator.set_state(random)
            assert torch.equal(step(other), expected)


def test_the_state_of_another_pipeline_is_refused():
    with pytest.raises(ConfigError, match="saved state is of the pipeline"):
        gradhomog.pipeline("pcgrad").load_state_dict(gradhomog.pipeline("gradnorm").state_dict())
    with pytest.raises(ConfigError, match=r"must hold \['generator'\]; found \[\]"):
        gradhomog.pipeline("pcgrad").load_state_dict({"0:pcgrad": {}})


def test_global_random_numbers_are_not_touched():
    before = torch.get_rng_state()
    pipe = gradhomog.pipeline("pcgrad + static(weights='random') + gradnorm + mgda")
    pipe.combine(ROWS, losses=[1.0, 2.0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("text", ["none", "pcgrad", 'static(weights=[1, 2.5], scale="paper") + pcgrad(order="fixed")'])
def test_the_text_of_a_pipeline_makes_it_again(text):
    assert str(gradhomog.pipeline(str(gradhomog.pipeline(text)))) == text


@pytest.mark.parametrize("what", [["pcgrad", ("static", {"weights": [1, 2]})], ["pcgrad + static(weights=[1, 2])"]])
def test_lists_and_text_make_the_same_pipeline(what):
    assert str(gradhomog.pipeline(what)) == "pcgrad + static(weights=[1, 2])"


def test_what_makes_no_pipeline_is_refused():
    with pytest.raises(OptionError, match="made of names"):
        gradhomog.pipeline([42])
    with pytest.raises(OptionError, match="'none' is the empty pipeline and cannot be combined"):
        gradhomog.pipeline(["none", "pcgrad"])
    with pytest.raises(OptionError, match="`nonfinite` is 'raise' in the pipeline given"):
        gradhomog.pipeline(gradhomog.pipeline("pcgrad"), nonfinite="drop")
    with pytest.raises(OptionError, match="`nonfinite` must be 'raise' or 'drop'"):
        gradhomog.pipeline("none", nonfinite="ignore")


# -- inputs that showed a defect -------------------------------------------------------------------------------------


class Single(Homogenizer):
    def attach(self, encoder):
        return encoder.register_forward_hook(lambda module, inputs, output: output + 1)


def test_a_single_handle_is_as_good_as_a_list_of_them():
    encoder = nn.Linear(2, 2)
    with gradhomog.pipeline([Single()]).attached(encoder):
        assert len(encoder._forward_hooks) == 1
    assert not encoder._forward_hooks


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda self, encoder: [1], "handles with a method `remove`; got int"),
        (lambda self, encoder: (1 / 0 for _ in "x"), "raised in `attach`: ZeroDivisionError"),
    ],
)
def test_what_attach_returns_is_checked_and_named(function, message):
    pipe = gradhomog.pipeline([Noted(), faulty("attach", function)])
    encoder = nn.Linear(2, 2)
    with pytest.raises(PluginRunError, match=message), pipe.attached(encoder):
        pass
    assert not encoder._forward_hooks


def test_rows_that_are_not_finite_are_refused_by_name():
    with pytest.raises(PluginRunError, match="Faulty returned NaN or infinity from `rows`"):
        gradhomog.pipeline([faulty("rows", lambda self, j: j / 0)]).combine(ROWS)


class Watching(Homogenizer):
    def mix(self, evidence):
        return torch.ones(evidence.tasks)

    def update(self, evidence):
        self.graphs = [evidence.losses, evidence.gramian(), evidence.norms(), evidence.rows, evidence.features]


def test_what_update_sees_has_no_graph_even_with_create_graph():
    watching = Watching()
    spec = HomogenizerSpec(
        factory=Watching, summary="", traits={"differentiable"}, needs=set(gradhomog.specs.STATISTICS)
    )
    pipe = Pipeline([Member(watching, "watching", {}, None, spec)])
    rows, losses = ROWS.clone().requires_grad_(), torch.ones(2, requires_grad=True)
    features = torch.ones(2, 1, 3, requires_grad=True)
    assert pipe.combine(rows, losses, features=features, create_graph=True).requires_grad
    assert not any(value.requires_grad for value in watching.graphs)


def test_a_state_that_does_not_fit_changes_nothing():
    pipe = gradhomog.pipeline("pcgrad + gradnorm")
    pipe.combine(ROWS, losses=[1.0, 2.0])
    before = str(pipe.state_dict())
    other = gradhomog.pipeline("pcgrad(seed=9) + gradnorm").state_dict()
    del other["1:gradnorm"]["weights"]
    with pytest.raises(ConfigError):
        pipe.load_state_dict(other)
    assert str(pipe.state_dict()) == before


def test_derivatives_at_a_zero_row_are_finite():
    rows = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    for text in ("mgda(normalize='l2', zero_rows='drop')", "reweight(beta=0, solver='fixed_point')", "pcgrad"):
        direction = gradhomog.pipeline(text).combine(rows, create_graph=True)
        assert torch.isfinite(torch.autograd.grad(direction.sum(), rows)[0]).all()
    cosine = gradhomog.cosines(rows @ rows.T)[0, 1]
    assert torch.isfinite(torch.autograd.grad(cosine, rows)[0]).all()


@pytest.mark.parametrize("nonfinite", ["raise", "drop"])
@pytest.mark.parametrize("needs", [set(), {"norms"}])
def test_weights_under_which_finite_rows_become_infinite_are_told_and_nothing_is_learnt(nonfinite, needs):
    class Heavy(Homogenizer):
        learnt = 0

        def __init__(self):
            self.needs = needs

        def mix(self, evidence):
            return torch.full((evidence.tasks,), 1e40, dtype=torch.float64)

        def update(self, evidence):
            self.learnt += 1

    heavy = Heavy()
    pipe = gradhomog.pipeline([heavy], nonfinite=nonfinite)
    with pytest.raises(
        PluginRunError, match=r"Heavy.*weights of up to 1\.0e\+40.*float32: the direction is not finite"
    ):
        pipe.combine(torch.eye(3))
    assert heavy.learnt == 0
    assert torch.isfinite(pipe.combine(torch.eye(3, dtype=torch.float64))).all()
