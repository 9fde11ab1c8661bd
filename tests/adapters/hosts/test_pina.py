"""`HomogenizedWeighting` with PINA itself: "none" is PINA, the direction is the pipeline's, checkpoints keep state."""

import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import MomentumWarning, NonfiniteError, OptionError

from .lightning_modules import QUIET
from .measures import parameters

_format = warnings.formatwarning
for _name in ("pina.trainer", "pina.solver", "pina.problem.zoo", "pina.weighting", "pina.callback", "pina.optim"):
    pytest.importorskip(_name, reason="needs the extra `pina`")
warnings.formatwarning = _format  # PINA sets its own for the whole process

from lightning.pytorch.strategies import DeepSpeedStrategy  # noqa: E402
from pina import Trainer  # noqa: E402
from pina.callback import SwitchOptimizer  # noqa: E402
from pina.model import FeedForward  # noqa: E402
from pina.optim import TorchOptimizer  # noqa: E402
from pina.problem.zoo import InversePoisson2DSquareProblem, Poisson2DSquareProblem  # noqa: E402
from pina.solver import (  # noqa: E402
    CompetitivePhysicsInformedSolver,
    PhysicsInformedEnsembleSolver,
    PhysicsInformedSingleModelSolver,
    SelfAdaptivePhysicsInformedSolver,
)
from pina.weighting import ScalarWeighting  # noqa: E402

from gradhomog_adapters.pina import HomogenizedWeighting  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice, and deprecations within PINA


def poisson() -> Any:
    """The Poisson equation on a square with the conditions `boundary` and `D`, on the same points at every call."""
    return sampled(Poisson2DSquareProblem)


def sampled(kind: Any, **options: Any) -> Any:
    random.seed(0)  # PINA chooses edges of the boundary by it
    torch.manual_seed(0)  # initial values of unknown coefficients are random
    problem = kind(**options)
    for domain in problem.domains:
        problem.discretise_domain(n=12, mode="random", domains=domain)
    return problem


def solver(
    weighting: Any = None, *, problem: Any = None, optimizer: Any = torch.optim.SGD, kind: Any = None, **options: Any
) -> Any:
    """A solver with the same parameters at every call."""
    problem = poisson() if problem is None else problem
    torch.manual_seed(0)
    network = FeedForward(2, 1, n_layers=1, inner_size=6)
    given = TorchOptimizer(optimizer, **{"lr": 1e-3, **options})
    return (kind or PhysicsInformedSingleModelSolver)(problem, network, optimizer=given, weighting=weighting)


def train(trained: Any, epochs: int = 4, callbacks: Sequence[Any] = (), path: Any = None, **options: Any) -> Trainer:
    trainer = Trainer(trained, max_epochs=epochs, callbacks=[*callbacks], **{**QUIET, **options})
    trainer.train(ckpt_path=path)
    return trainer


@pytest.fixture(autouse=True)
def float64() -> Any:
    """Double precision as PyTorch's default, which PINA's models and points use."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def weighting(text: str, **weights: float) -> HomogenizedWeighting:
    return HomogenizedWeighting(gradhomog.pipeline(text), weights)


@pytest.mark.parametrize(
    ("options", "training", "weights", "unknown"),
    [
        ({}, {}, {}, False),
        ({"optimizer": torch.optim.Adam}, {}, {}, False),
        ({"weight_decay": 0.1}, {}, {}, False),
        ({}, {"batch_size": 6, "accumulate_grad_batches": 2}, {}, False),
        ({}, {"gradient_clip_val": 1.0}, {}, False),
        ({}, {}, {"boundary": 20}, False),
        ({}, {}, {}, True),
    ],
    ids=str,
)
def test_without_homogenizers_training_is_pinas(options: Any, training: Any, weights: Any, unknown: bool) -> None:
    found = []
    for given in (ScalarWeighting(weights), weighting("none", **weights)):
        problem = sampled(InversePoisson2DSquareProblem, load=False) if unknown else poisson()
        coefficients = [*problem.unknown_parameters.values()] if unknown else []
        start = torch.stack([value.detach().clone() for value in coefficients]) if unknown else torch.zeros(0)
        trained = solver(given, problem=problem, **options)
        torch.manual_seed(1)
        loss = train(trained, **training).callback_metrics["train_loss"]
        assert all(torch.tensor(coefficients) != start.flatten())
        found.append(torch.cat([parameters(trained), torch.tensor(coefficients), loss.detach()[None]]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)


def test_without_homogenizers_an_ensemble_with_manual_optimization_is_pinas() -> None:
    results = []
    for given in (None, weighting("none")):
        torch.manual_seed(0)
        models = [FeedForward(2, 1, n_layers=1, inner_size=4) for _ in range(2)]
        optimizers = [TorchOptimizer(torch.optim.SGD, lr=1e-3) for _ in models]
        trained = PhysicsInformedEnsembleSolver(poisson(), models, optimizers=optimizers, weighting=given)
        train(trained)
        results.append(parameters(trained))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text", ["upgrad", "trimmed_mean", "static(weights=[1, 3])"])
def test_one_step_follows_the_direction_of_the_weighted_losses_gradients(text: str) -> None:
    found: list[Tensor] = []

    class Rows(ScalarWeighting):
        """Stores the gradients that PINA's losses have at the first step, `[conditions, params]`."""

        def update_weights(self, losses: dict[str, Tensor]) -> Any:
            for name in ("boundary", "D"):
                row = torch.autograd.grad(
                    losses[name], [*self.solver.parameters()], retain_graph=True, materialize_grads=True
                )
                found.append(torch.cat([part.as_subclass(Tensor).flatten() for part in row]))
            return super().update_weights(losses)

    train(solver(Rows(1)), epochs=1)
    jacobian = torch.stack(found) * torch.tensor([[4.0], [1.0]])
    trained = solver(weighting(text, boundary=4))
    before = parameters(trained)
    train(trained, epochs=1)
    expected = before - 1e-3 * 2 * gradhomog.pipeline(text).combine(jacobian)
    torch.testing.assert_close(parameters(trained), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotograd", "rotograd reads features, which PINA does"),
        ("ntk", "ntk reads residuals, which PINA does not pass"),
    ],
)
def test_homogenizers_that_read_features_or_residuals_are_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        weighting(text)


def test_the_weights_of_the_last_step_are_reported_by_condition() -> None:
    given = weighting("static(weights=[1, 3])", boundary=20)
    assert given.last_saved_weights() == {}
    train(solver(given), epochs=1)
    assert given.last_saved_weights() == pytest.approx({"boundary": 0.5 * 20, "D": 1.5})
    assert given.report is not None
    assert given.report.tasks == (0, 1)
    replaced = weighting("trimmed_mean")
    train(solver(replaced), epochs=1)
    assert replaced.last_saved_weights() == {}


def test_a_condition_that_is_not_in_the_batch_is_absent() -> None:
    given = weighting("uw")
    net = nn.Linear(1, 1)
    trainer = SimpleNamespace(training=True, optimizers=[], current_epoch=0, strategy=None, world_size=1)
    given._solver = SimpleNamespace(trainer=trainer, problem=poisson(), named_parameters=net.named_parameters)
    given.aggregate({"D": net(torch.ones(1)).square().sum()}).backward()
    assert given.report is not None
    assert given.report.tasks == (list(poisson().conditions).index("D"),)


def test_deepspeed_is_refused_in_one_process() -> None:
    given = weighting("uw")
    strategy = DeepSpeedStrategy.__new__(DeepSpeedStrategy)  # not created: it needs the package
    trainer = SimpleNamespace(training=True, optimizers=[], current_epoch=0, strategy=strategy, world_size=1)
    given._solver = SimpleNamespace(trainer=trainer, problem=poisson())
    with pytest.raises(OptionError, match=r"got DeepSpeedStrategy \(devices: 1\)"):
        given.aggregate({"D": torch.ones(1, requires_grad=True).sum()})


def test_validation_does_not_take_steps() -> None:
    given = weighting("uw")
    trainer = train(solver(given), epochs=3, train_size=0.5, val_size=0.5)
    assert "boundary" in str(given.state_dict())  # names of conditions are the domains
    assert given.pipe.steps == 3
    assert trainer.callback_metrics["val_loss"] > 0


def test_a_run_resumed_from_a_checkpoint_continues_exactly(tmp_path: Path) -> None:
    whole = weighting("uw")
    uninterrupted = solver(whole, optimizer=torch.optim.Adam)
    train(uninterrupted, epochs=6, callbacks=[whole])

    first = weighting("uw")
    trainer = train(solver(first, optimizer=torch.optim.Adam), epochs=3, callbacks=[first])
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second = weighting("uw")
    resumed = solver(second, optimizer=torch.optim.Adam)
    train(resumed, epochs=6, callbacks=[second], path=tmp_path / "half.ckpt")
    assert second.pipe.steps == whole.pipe.steps == 6
    torch.testing.assert_close(parameters(resumed), parameters(uninterrupted), rtol=1e-12, atol=1e-13)


def test_a_run_that_is_resumed_without_the_callback_warns(tmp_path: Path) -> None:
    first = weighting("uw")
    train(solver(first), epochs=2, callbacks=[first]).save_checkpoint(tmp_path / "half.ckpt")
    with pytest.warns(UserWarning, match=r"continues at epoch 2 with new homogenizers.*callbacks=\[weighting\]"):
        train(solver(weighting("uw")), epochs=3, path=tmp_path / "half.ckpt")


def test_a_callback_that_is_not_the_weighting_of_the_solver_is_an_error() -> None:
    with pytest.raises(OptionError, match="must be the weighting of the solver too; the solver has ScalarWeighting"):
        train(solver(ScalarWeighting(1)), callbacks=[weighting("upgrad")])


def test_momentum_after_averages_of_rows_warns() -> None:
    with pytest.warns(MomentumWarning, match="tracked averages rows over steps, and Adam"):
        train(solver(weighting("tracked"), optimizer=torch.optim.Adam), epochs=1)


def test_lbfgs_with_a_pipeline_of_an_earlier_training_warns_of_the_plain_sum() -> None:
    given = weighting("uw")
    train(solver(given), epochs=1)
    with pytest.warns(UserWarning, match="minimizes the plain sum"):
        train(solver(given, optimizer=torch.optim.LBFGS, lr=0.1, max_iter=2), epochs=1)


def test_lbfgs_is_refused_at_the_start() -> None:
    with pytest.raises(OptionError, match="first-order optimizer such as Adam; got L-BFGS"):
        train(solver(weighting("upgrad"), optimizer=torch.optim.LBFGS))


def test_after_a_switch_to_lbfgs_the_loss_is_the_plain_sum() -> None:
    given, plain = weighting("none"), None
    results = []
    for each in (given, plain):
        trained = solver(each)
        switch = SwitchOptimizer(TorchOptimizer(torch.optim.LBFGS, lr=0.1, max_iter=3), epoch_switch=2)
        train(trained, epochs=4, callbacks=[switch])
        results.append(parameters(trained))
    assert given.pipe.steps == 2
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", [SelfAdaptivePhysicsInformedSolver, CompetitivePhysicsInformedSolver])
def test_an_adversarial_solver_is_refused_before_a_parameter_changes(kind: Any) -> None:
    torch.manual_seed(0)
    trained = kind(poisson(), FeedForward(2, 1), weighting=weighting("upgrad"))
    before = parameters(trained)
    with pytest.raises(OptionError, match=f"adversarial training; got {kind.__name__}"):
        train(trained)
    assert torch.equal(parameters(trained), before)


@pytest.mark.parametrize("weights", [3.0, {"D": -1.0}, {"D": 0}, {"D": "2"}], ids=str)
def test_weights_that_are_not_positive_factors_are_an_error(weights: Any) -> None:
    with pytest.raises(OptionError, match="`weights` must be a dict of positive factors by condition"):
        HomogenizedWeighting(gradhomog.pipeline("none"), weights)


def test_a_weight_of_an_unknown_condition_is_an_error() -> None:
    with pytest.raises(OptionError, match="names of conditions, boundary, D; got edge"):
        train(solver(weighting("none", edge=2.0)))


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    trained = solver(weighting("upgrad", boundary=float("inf")))
    before = parameters(trained)
    with pytest.raises(NonfiniteError, match="boundary"):
        train(trained)
    assert torch.equal(parameters(trained), before)
