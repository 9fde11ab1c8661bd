"""Reports of a learner's step: calls of `begin`, rows after each stage, probes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Homogenizer
from gradhomog.diagnosis.learner_rows import stage_rows
from gradhomog_adapters.maml import MAML
from tests.adapters.checks import networks, tasks


def learner(homogenizers, **options):
    return MAML(*networks(True), homogenizers, inner_steps=2, **options)


class CallRecorder(Homogenizer):
    """Records each `begin` and the number of inputs of each encoder pass."""

    def __init__(self):
        self.notes = []

    def attach(self, encoder):
        return encoder.register_forward_hook(lambda module, args, output: self.notes.append(len(args[0])))

    def begin(self, key, part, generator):
        self.notes.append((key.slot, key.domain, part))


class Halve(Homogenizer):
    def transform(self, features, keys):
        return features / 2

    def measured(self, step):
        return {"factor": 0.5}


class Noise(Homogenizer):
    """Scales features by a random factor from the generator of `begin`."""

    def __init__(self):
        self.drawn = []

    def begin(self, key, part, generator):
        if part == "query":
            self.drawn.append(float(torch.rand(1, generator=generator)))

    def transform(self, features, keys):
        return features * self.drawn[-1]


@pytest.mark.parametrize("norm", ["batch", "support"])
def test_begin_precedes_every_change_between_support_and_query_inputs(norm):
    journal = CallRecorder()
    learner([journal], norm=norm).rows(tasks(2))
    replayed = [6] if norm == "support" else []  # one more pass of the support set, for its statistics
    expected = []
    for slot in range(2):
        expected += [(slot, f"domain {slot}", "support"), 6, 6, *replayed, (slot, f"domain {slot}", "query"), 9]
    assert journal.notes == expected


def test_no_stage_is_called_at_meta_test():
    journal = CallRecorder()
    learner([journal]).evaluate(tasks(1))
    assert journal.notes == []


def test_a_report_describes_the_rows_after_each_stage_and_the_measurements():
    model = learner([Halve(), "static(weights=[1, 2, 3])", "pcgrad", Halve()])
    report = model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert [stage.name for stage in report.stages] == ["static", "pcgrad"]
    torch.testing.assert_close(report.stages[0].norms, report.norms * torch.tensor([1, 2, 3]).double() / 2)
    torch.testing.assert_close(report.stages[0].cosines, report.cosines)
    assert dict(report.measured) == {"Halve": {"factor": 0.5}, "Halve#2": {"factor": 0.5}}
    assert report.record()["stages"][1]["name"] == "pcgrad"


def test_a_probe_reports_the_encoders_rows_with_each_prefix_of_the_pipeline():
    model = learner([Halve(), "static(weights=[1, 2, 3])"])
    batch = tasks()
    plain, halved, weighted = model.probe(batch)
    assert [plain.name, halved.name, weighted.name] == ["plain", "Halve", "static"]
    for found, homogenizers in ((plain, None), (halved, [Halve()])):
        rows = learner(homogenizers).rows(batch).jacobian
        flat = torch.cat([rows[name].flatten(1) for name in rows if name.startswith("encoder.")], dim=1).double()
        torch.testing.assert_close(found.norms, flat.norm(dim=1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(weighted.norms, halved.norms * torch.tensor([1, 2, 3]).double() / 2)


def test_a_probe_draws_the_same_numbers_for_every_prefix_and_changes_nothing():
    noise = Noise()
    model = learner([noise, Halve(), "gradnorm"])
    model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    noise.drawn.clear()
    before = model.state_dict()
    model.probe(tasks())
    assert len(set(noise.drawn)) == 3  # one number for each task, the same with one stage and with two
    assert noise.drawn[:3] == noise.drawn[3:]
    after = model.state_dict()
    assert before["homogenizers"] == after["homogenizers"]
    assert model.homogenizers.steps == 1
    probed = noise.drawn[:3]
    model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert noise.drawn[6:] == probed  # the same as in the next step
    for part in ("encoder", "head"):
        assert all(torch.equal(before[part][name], after[part][name]) for name in before[part])


def test_targets_reach_the_homogenizers_that_read_features():
    class Reader(Homogenizer):
        def update(self, step):
            seen.append(step.targets)
            return {}

    seen = []
    model = learner([Reader()])
    batch = tasks()
    model.step(batch, torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(seen[0], torch.stack([task.query_y for task in batch]))
    with pytest.raises(gradhomog.OptionError, match=r"requires the targets of the tasks.*\[tasks, queries\]"):
        gradhomog.pipeline([Reader()]).combine(torch.eye(2))


def test_a_probe_draws_the_same_dropout_masks_and_restores_the_global_generator():
    # Regression test: rows of "plain" and of an identity differed.
    class Identity(Homogenizer):
        def transform(self, features, keys):
            return features

    model = learner([Identity()])
    model.encoder.append(nn.Dropout(0.5))
    state = torch.get_rng_state()
    plain, same = model.probe(tasks())
    assert torch.equal(plain.norms, same.norms)
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_by_stage_leave_the_pipeline_in_place_while_and_after_they_are_read():
    model = learner([Halve(), "pcgrad"])
    pipe, names = model.homogenizers, []
    for name, _ in stage_rows(model, tasks()):
        names.append(name)
        assert model.homogenizers is pipe
        if name == "Halve":
            break  # the reader need not finish
    assert names == ["plain", "Halve"]
    model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert model.homogenizers is pipe
