"""Statistics of the rows: computed once, only if declared, and without a graph for `update`."""

import pytest
import torch

import gradhomog
from gradhomog import Homogenizer, OptionError, PluginRunError, StageResult
from gradhomog.rows import DenseRows, arithmetic
from tests.step.members import ROWS, C, Matrix, Weights, declared


@pytest.fixture
def gramians(monkeypatch):
    """Record every computation of a Gramian."""
    calls = []
    original = DenseRows.products

    def products(self, product, by_block):
        if product is arithmetic.gramian:
            calls.append("blocks" if by_block else "total")
        return original(self, product, by_block)

    monkeypatch.setattr(DenseRows, "products", products)
    return calls


def test_statistics_are_computed_once_for_all_members(gramians):
    members = [Matrix(*C), "gradnorm", Matrix(*C), "static"]
    gradhomog.pipeline(members).homogenize(ROWS, torch.ones(2), inspect=True)
    assert gramians.count("total") <= 1
    assert gramians.count("blocks") <= 1
    assert gramians


def test_a_pipeline_that_does_not_read_the_gramian_does_not_compute_it(gramians):
    gradhomog.pipeline("static(weights=[1, 2]) + gradnorm").combine(ROWS, losses=[1.0, 2.0])
    assert not gramians


def test_reading_an_undeclared_statistic_raises_with_the_statistic_to_declare():
    with pytest.raises(PluginRunError, match=r"reads `gramian`.*Add 'gramian' to `needs`"):
        declared(Matrix(*C), needs={"losses"}).combine(ROWS)


def test_an_object_may_declare_fewer_statistics_than_its_plugin_but_not_others(gramians):
    weights = Weights(1, 3)
    weights.needs = {"norms"}
    declared(weights, needs={"gramian", "norms"}).combine(ROWS)
    assert not gramians
    weights.needs = {"losses"}
    with pytest.raises(PluginRunError, match=r"sets `needs` to \['losses'\].*Add \['losses'\] to `needs`"):
        declared(weights, needs={"gramian", "norms"})


def test_update_and_measured_receive_the_detached_step_of_mix():
    received = {}

    class Watching(Homogenizer):
        def mix(self, step):
            return StageResult(step.losses.exp() / step.losses.exp().mean(), aux=[step.losses * 2])

        def update(self, step):
            received["update"] = step
            return {}

        def measured(self, step):
            received["measured"] = step
            return {"losses": step.losses.tolist()}

    pipe = declared(Watching(), traits={"differentiable"}, needs=gradhomog.registry.specs.STATISTICS)
    rows, losses = ROWS.clone().requires_grad_(), torch.ones(2, requires_grad=True)
    features = torch.ones(2, 1, 3, requires_grad=True)
    options = {"features": features, "feature_grads": features, "targets": torch.zeros(2, 1)}
    assert pipe.combine(rows, losses, **options, create_graph=True).requires_grad
    for step in received.values():
        read = [step.losses, step.gramian(), step.norms(), *step.jacobian.materialize().values(), *step.aux]
        assert not any(value.requires_grad for value in [*read, step.features, step.feature_grads, step.targets])
        assert torch.equal(step.aux[0], torch.full((2,), 2.0, dtype=torch.float64))


def test_the_step_is_immutable_and_a_pattern_without_a_match_raises():
    class Reader(Homogenizer):
        def mix(self, step):
            assert step.matches("w*")
            assert not step.matches("head.*")
            with pytest.raises(AttributeError):
                step.number = 3
            step.norms("head.*")

    with pytest.raises(OptionError, match=r"'head.\*' matches none of: weight"):
        gradhomog.pipeline([Reader()]).combine({"weight": ROWS})


def test_the_largest_number_of_tasks_is_checked_before_a_gramian_is_computed(gramians):
    pipe = declared(Matrix(*C), needs={"gramian"}, max_tasks=1)
    with pytest.raises(OptionError, match="supports at most 1 tasks, because more would need too much memory"):
        pipe.combine(ROWS)
    assert not gramians


def test_a_solver_that_did_not_converge_is_reported_and_warned_about():
    class Early(Homogenizer):
        def mix(self, step):
            return StageResult(torch.ones(step.tasks), converged=False)

    pipe = gradhomog.pipeline([Early(), Weights(1, 1)])
    with pytest.warns(gradhomog.ConvergenceWarning, match="the solver of homogenizer Early did not converge"):
        result = pipe.homogenize(ROWS)
    assert result.unconverged == ("homogenizer Early",)
    assert gradhomog.pipeline([Weights(1, 1)]).homogenize(ROWS).unconverged == ()
