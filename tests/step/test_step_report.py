"""The report of a step: one class from every entry point, its text, its table, and its scalars for loggers."""

import pytest
import torch

import gradhomog
from gradhomog import StepReport
from gradhomog.testing import small_network
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.torchopt import meta_step

ROWS = torch.tensor([[3.0, 0.0], [-1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
LOSSES = [0.5, 2.0, 4.0]


def of_loss(losses, pipe, net):
    found = []
    gradhomog.loss(losses, pipe, parameters=net, report=found.append).backward()
    return found[0]


def of_accumulated(losses, pipe, net):
    with gradhomog.accumulated(pipe, parameters=net) as several:
        several.add(losses)
    return several.step


def of_meta_step(losses, pipe, net):
    with meta_step(net, pipe) as step:
        for name, loss in losses.items():
            with step.task(domain=name):
                step.add(loss, retain_graph=True)
    return step.report


def of_homogenize(losses, pipe, net):
    rows = torch.stack([torch.autograd.grad(loss, net.weight, retain_graph=True)[0][0] for loss in losses.values()])
    return pipe.homogenize(rows, torch.stack([*losses.values()]), domains=[*losses])


ENTRY_POINTS = {
    "backward": lambda losses, pipe, net: gradhomog.backward(losses, pipe, parameters=net),
    "backward by group": lambda losses, pipe, net: gradhomog.backward(losses, pipe, parameters=net, per="layer"),
    "loss": of_loss, "accumulated": of_accumulated, "meta_step": of_meta_step, "homogenize": of_homogenize,
}  # fmt: skip


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_every_entry_point_reports_names_losses_norms_and_cosines(entry):
    net = torch.nn.Linear(2, 1, bias=False)
    losses = {name: (row.float() * net.weight).sum() for name, row in zip("abc", ROWS, strict=True)}
    report = ENTRY_POINTS[entry](losses, gradhomog.pipeline("pcgrad"), net)
    assert isinstance(report, StepReport)
    assert (report.names, report.tasks) == (("a", "b", "c"), (0, 1, 2))
    assert report.losses.tolist() == pytest.approx([loss.item() for loss in losses.values()])
    assert not report.losses.requires_grad
    torch.testing.assert_close(report.norms, ROWS.norm(dim=1))
    torch.testing.assert_close(report.cosines[0, 1], torch.cosine_similarity(ROWS[0], ROWS[1], dim=0))


def test_a_learner_reports_the_tasks_in_the_step_only():
    batch = small_network.batch()
    batch.query_x[1] = float("nan")
    learner = MAML(*small_network.network(), gradhomog.pipeline(None, nonfinite="drop"), inner_steps=1)
    report = learner.step(batch, torch.optim.SGD(learner.parameters(), lr=0.1))
    assert report.names == ("domain 0", "domain 2")
    assert len(report.losses) == len(report.accuracies) == len(report.norms) == 2
    assert report.losses.isfinite().all()
    assert not report.direction  # it would occupy the memory of a gradient in a list of reports


def test_scalars_are_the_numbers_of_the_step_by_name():
    report = gradhomog.pipeline("static(weights=[1, 2, 3])").homogenize(ROWS, LOSSES, domains=["a", "b", "c"])
    assert report.scalars() == pytest.approx({
        "loss/a": 0.5, "loss/b": 2, "loss/c": 4, "weight/a": 0.5, "weight/b": 1, "weight/c": 1.5,
    })  # fmt: skip
    found = gradhomog.pipeline("lra + pcgrad").homogenize(ROWS, inspect=True).scalars()
    cosines = {"cosine/0-1": -(0.5**0.5), "cosine/0-2": 0, "cosine/1-2": 0.5**0.5, "cosine/min": -(0.5**0.5)}
    assert {name: value for name, value in found.items() if "cosine" in name} == pytest.approx(cosines, abs=1e-15)
    assert found["norm/2"] == pytest.approx(2)
    assert "lra/weights" in found  # a measurement, the mean over the tasks


def test_scalars_of_tasks_with_one_name_are_means_and_do_not_depend_on_the_order_of_tasks():
    names, order = ["a", "b", "a"], [2, 1, 0]
    one = gradhomog.pipeline(None).homogenize(ROWS, LOSSES, domains=names, inspect=True).scalars()
    other = gradhomog.pipeline(None).homogenize(
        ROWS[order], [LOSSES[i] for i in order], domains=[names[i] for i in order], inspect=True
    )
    assert one == pytest.approx(other.scalars())
    assert one["loss/a"] == pytest.approx((0.5 + 4) / 2)
    assert one["cosine/a-b"] == pytest.approx(0, abs=1e-15)  # of -√½ and √½
    assert one["cosine/min"] == pytest.approx(-(0.5**0.5))


@pytest.mark.parametrize("tasks", [1, 2, 40])
@pytest.mark.parametrize("text", ["none", "pcgrad", "trimmed_mean"])
@pytest.mark.parametrize("losses", [True, False])
def test_a_report_is_printed_in_three_short_lines(tasks, text, losses):
    rows = torch.randn(tasks, 1000, generator=torch.Generator().manual_seed(0))
    report = gradhomog.pipeline(text).homogenize(rows, [1 / 3] * tasks if losses else None)
    lines = repr(report).split("\n")
    assert len(lines) == 3
    assert all(len(line) < 120 for line in lines)
    assert ("0 0.333" in lines[0]) == losses


def test_the_table_of_a_notebook_has_a_row_for_each_task_and_escapes_names():
    report = gradhomog.pipeline("pcgrad").homogenize(ROWS, LOSSES, domains=["<b>", "b", "b"])
    table = report._repr_html_()
    assert table.count("<tr>") == 1 + 3
    assert table.count("<td>") == 3 * (1 + 3 + 3)  # name; loss, weight, norm; cosines
    assert "&lt;b&gt;" in table
    assert "<b>" not in table
