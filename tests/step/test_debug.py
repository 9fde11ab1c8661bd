"""`debug=True` detects a stage that modifies its inputs in place, through any view of the memory."""

import pytest
import torch

import gradhomog
from gradhomog import PluginRunError
from tests.step.members import ROWS, faulty, in_dict

ONES = torch.ones(2)
WRITES = {
    "jacobian": lambda step: step.jacobian.materialize()["bias"].zero_(),
    "jacobian by .data": lambda step: step.jacobian.materialize()["weight"].data.zero_(),
    "jacobian by NumPy": lambda step: step.jacobian.materialize()["weight"].numpy().fill(0),
    "losses": lambda step: step.losses.add_(1),
    "gramian": lambda step: step.gramian().zero_(),
    "features": lambda step: step.features.clamp_(0),
    "feature_grads": lambda step: step.feature_grads.neg_(),
    "targets": lambda step: step.targets.zero_(),
}


def run(pipe):
    generator = torch.Generator().manual_seed(0)
    features, grads = (torch.randn(2, 3, 4, generator=generator) for _ in range(2))
    options = {"features": [features], "feature_grads": [grads], "targets": torch.ones(2, 3)}
    pipe.homogenize(in_dict(ROWS.clone()), torch.ones(2), **options)


RESULTS = {"mix": lambda step: ONES, "rows": lambda step: step.jacobian.map(torch.clone), "update": lambda step: {}}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("write", WRITES)
def test_a_stage_that_modifies_its_inputs_is_named(name, write):
    writing = faulty(name, lambda self, step: (WRITES[write](step), RESULTS[name](step))[1])
    with pytest.raises(PluginRunError) as raised:
        run(gradhomog.pipeline([writing], debug=True))
    tensor = write.split()[0]
    assert f"homogenizer Faulty modified `{tensor}" in str(raised.value)
    assert f"in place in `{name}`" in str(raised.value)
    assert "clone()" in str(raised.value)


def test_reading_and_copying_are_allowed_and_debug_does_not_change_results():
    def reads(self, step):
        step.jacobian.materialize()["bias"].clone().mul_(2)
        step.gramian().clone().zero_()
        return ONES

    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    pipe = gradhomog.pipeline([faulty("mix", reads)], debug=True)
    run(pipe)
    for text in ("static(weights=[1, 2, 3]) + gradnorm", "graddrop", "moco"):
        found = [gradhomog.pipeline(text, debug=debug).combine(rows, losses=[1.0, 2.0, 3.0]) for debug in (True, False)]
        assert torch.equal(*found)


def test_tensors_of_inference_mode_are_supported_although_they_have_no_version_counter():
    with torch.inference_mode():
        rows, losses = ROWS.clone(), torch.ones(2, dtype=torch.float64)
        direction = gradhomog.pipeline("static(weights=[1, 3]) + gradnorm", debug=True).combine(rows, losses=losses)
    torch.testing.assert_close(direction, torch.tensor([0.25, -0.25, 2.25]))


def test_nan_in_the_input_does_not_count_as_a_modification():
    with pytest.raises(gradhomog.NonfiniteError, match="task 0 is not finite"):
        gradhomog.pipeline("pcgrad", debug=True).combine(torch.tensor([[torch.nan, 1.0], [1.0, 1.0]]))
