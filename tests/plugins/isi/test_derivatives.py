"""Derivatives of both orders through ISI's masks, backward, forward and under `vmap`."""

import pytest
import torch

from gradhomog_plugins.isi import ISI
from tests.plugins.isi.networks import begin, images, learner, network, tasks


@pytest.mark.parametrize("options", [{}, {"layers": ["2", "3"], "sampling": "multinomial", "temperature": 2.0}])
def test_second_order_rows_are_the_derivative_of_the_loss_with_the_same_masks(options):
    class Replayed(ISI):
        """Replays the masks of the first call of `rows` in all later calls, after changes of the parameters."""

        recorded, replay = (), ()

        def _draw(self, call, generator, inputs):
            if self.replay:
                return self.replay.pop(0)
            self.recorded += (super()._draw(call, generator, inputs),)
            return self.recorded[-1]

    isi = Replayed(rate=0.3, **options)
    model, batch = learner([isi], torch.float64, inner_steps=3), tasks(dtype=torch.float64)
    found = model.rows(batch).jacobian
    assert len(isi.recorded) == 8  # two layers, two tasks, support and query; independent of the number of inner steps
    generator = torch.Generator().manual_seed(1)
    direction = {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in model.named_parameters().items()
    }
    losses = []
    for step in (1e-6, -2e-6):  # forward, then backward
        with torch.no_grad():
            for name, parameter in model.named_parameters().items():
                parameter += step * direction[name]
        isi.replay = list(isi.recorded)
        losses.append(model.rows(batch).losses)
    expected = (losses[0] - losses[1]) / 2e-6
    derivative = sum((rows * direction[name]).flatten(1).sum(1) for name, rows in found.items())
    torch.testing.assert_close(derivative, expected, rtol=1e-6, atol=1e-8)


def test_under_vmap_every_task_has_separate_masks_and_the_rows_of_a_single_task():
    class Noted(ISI):
        noted, task = (), None

        def _draw(self, call, generator, inputs):
            if self.task is not None:  # a single task, with the masks that it had in the batch
                return self.noted[call.name == "3"].unflatten(0, (3, 6))[self.task]
            self.noted += (super()._draw(call, generator, inputs),)
            return self.noted[-1]

    def loss(values, inputs):
        return torch.func.functional_call(encoder, values, (inputs,)).square().mean()

    def adapted_loss(values, inputs):
        adapted = values
        for _ in range(2):
            gradient = torch.func.grad(loss)(adapted, inputs)
            adapted = {name: value - 0.1 * gradient[name] for name, value in adapted.items()}
        return loss(adapted, inputs)

    isi, encoder = Noted(rate=0.3), network()
    parameters = {name: p.detach() for name, p in encoder.named_parameters()}
    x = torch.stack([images(seed=seed) for seed in range(3)])
    row = torch.func.grad(adapted_loss)
    isi.attach(encoder)
    begin(isi)
    rows = torch.func.vmap(row, in_dims=(None, 0))(parameters, x)
    assert len(isi.noted) == 2  # two layers; independent of the number of passes
    assert not torch.equal(isi.noted[0][:6], isi.noted[0][6:12])
    for task in range(3):
        isi.task = task
        begin(isi)
        for name, alone in row(parameters, x[task]).items():
            torch.testing.assert_close(rows[name][task], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch 2.13's own forward mode
def test_forward_mode_derivatives_pass_through_the_masks():
    isi, encoder, x = ISI(layers=1), network().double(), images().double()
    parameters = {name: p.detach() for name, p in encoder.named_parameters()}
    isi.attach(encoder)
    begin(isi, part="query")

    def loss(values):
        return torch.func.functional_call(encoder, values, (x,)).square().sum()

    forward = torch.func.jvp(loss, (parameters,), (parameters,))[1]
    reverse = sum((g * parameters[name]).sum() for name, g in torch.func.grad(loss)(parameters).items())
    torch.testing.assert_close(forward, reverse)
