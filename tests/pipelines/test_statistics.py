"""Statistics of the rows: computed once, only where they are declared, without a graph for what is learnt."""

from __future__ import annotations

import pytest
import torch

import gradhomog
from gradhomog import Homogenizer, HomogenizerSpec, PluginRunError
from gradhomog.engine.member import Member
from gradhomog.pipelines import Pipeline
from tests.pipelines.members import ROWS, C, Matrix, Weights


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
