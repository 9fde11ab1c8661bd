"""`homogenize` with DeepXDE itself: "none" is DeepXDE, the direction is the pipeline's, other phases are unchanged."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradhomog
from gradhomog import MomentumWarning, NonfiniteError, OptionError

from . import measures

os.environ["DDE_BACKEND"] = "pytorch"
dde: Any = pytest.importorskip("deepxde", reason="needs the extra `deepxde`")
torch.set_default_device(None)  # DeepXDE sets CUDA where there is a GPU, for all tests of the process

from gradhomog_adapters.deepxde import homogenize  # noqa: E402  # after the backend is chosen


def burgers(x: Tensor, u: Tensor) -> Tensor:
    u_x, u_t = (dde.grad.jacobian(u, x, i=0, j=j) for j in (0, 1))
    return u_t + u * u_x - 0.01 / np.pi * dde.grad.hessian(u, x, i=0, j=0)


def burgers_data(pde: Any = burgers) -> Any:
    """Burgers' equation with a boundary and an initial condition, as in DeepXDE's example, on few points."""
    dde.config.set_random_seed(0)
    domain = dde.geometry.GeometryXTime(dde.geometry.Interval(-1, 1), dde.geometry.TimeDomain(0, 0.99))
    boundary = dde.icbc.DirichletBC(domain, lambda x: 0, lambda _, on_boundary: on_boundary)
    initial = dde.icbc.IC(domain, lambda x: -np.sin(np.pi * x[:, :1]), lambda _, on_initial: on_initial)
    return dde.data.TimePDE(domain, pde, [boundary, initial], num_domain=20, num_boundary=8, num_initial=8)


def model(data: Any = None, *, regularization: Any = None, outputs: int = 1) -> Any:
    """A model that is not compiled; the same parameters at every call."""
    data = burgers_data() if data is None else data
    dde.config.set_random_seed(0)
    net = dde.nn.FNN([2, 8, 8, outputs], "tanh", "Glorot uniform", regularization=regularization)
    return dde.Model(data, net)


def compiled(optimizer: Any = "sgd", data: Any = None, regularization: Any = None, **options: Any) -> Any:
    found = model(data, regularization=regularization)
    found.compile(optimizer, **{"lr": 0.01, "verbose": 0, **options})
    return found


def train(trained: Any, iterations: int | None = 5) -> None:
    trained.train(iterations=iterations, display_every=1, verbose=0)


def parameters(trained: Any) -> Tensor:
    return measures.parameters(trained.net)


def rows(trained: Any) -> Tensor:
    """The gradients of DeepXDE's own losses, `[losses, params]`."""
    return measures.rows(trained.outputs_losses_train(*trained.data.train_next_batch())[1], trained.net)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Double precision in DeepXDE, which is PyTorch's global default."""
    dde.config.set_default_float("float64")
    yield
    dde.config.set_default_float("float32")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam", "decay": ("step", 2, 0.5)},
        {"loss_weights": [1, 0, 2]},
        {"loss": ["MSE", "MAE", "MSE"]},
        {"loss_weights": 5.0},
        {"loss_weights": [3.0]},
        {"regularization": ["l1", 0.1]},
        {"regularization": ["l2", 0.1]},
    ],
    ids=str,
)
def test_without_homogenizers_training_is_deepxdes(options: dict[str, Any]) -> None:
    plain, homogenized = compiled(**options), compiled(**options)
    step = homogenize(homogenized, gradhomog.pipeline("none"))
    for trained in (plain, homogenized):
        train(trained)
    torch.testing.assert_close(parameters(homogenized), parameters(plain), rtol=1e-10, atol=1e-12)
    assert step.pipe.steps == 5
    assert homogenized.train_state.step == plain.train_state.step
    assert homogenized.losshistory.steps == plain.losshistory.steps
    for found, expected in zip(homogenized.losshistory.loss_train, plain.losshistory.loss_train, strict=True):
        assert found == pytest.approx(expected, rel=1e-9)


def test_without_homogenizers_parameters_outside_the_network_are_trained_as_by_deepxde() -> None:
    """An unknown viscosity, and a parameter that only the given optimizer has."""

    def found(is_homogenized: bool) -> Tensor:
        viscosity, scale = dde.Variable(0.5), torch.nn.Parameter(torch.ones(1))
        trained = model(burgers_data(lambda x, u: burgers(x, u) - viscosity * dde.grad.hessian(u, x, i=0, j=0)))
        trained.net.apply_feature_transform(lambda x: x * scale)
        optimizer = torch.optim.SGD([*trained.net.parameters(), viscosity, scale], lr=0.01)
        trained.compile(optimizer, external_trainable_variables=[viscosity], verbose=0)
        if is_homogenized:
            homogenize(trained, gradhomog.pipeline("none"))
        train(trained, 3)
        return torch.cat([parameters(trained), viscosity.detach()[None], scale.detach()])

    plain = found(False)
    assert all(plain[-2:] != torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(found(True), plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text", ["upgrad", "pcgrad", "trimmed_mean", "static(weights=[1, 2, 5])"])
@pytest.mark.parametrize(("weights", "l1"), [(None, 0.0), ([1.0, 10.0, 0.1], 0.0), (None, 0.1)])
def test_one_step_follows_the_direction_of_the_weighted_losses_gradients(
    text: str, weights: list[float] | None, l1: float
) -> None:
    # In-place weights are part of DeepXDE's losses; the penalty is added to the direction.
    trained = compiled(loss_weights=weights, regularization=["l1", l1])
    step, before = homogenize(trained, gradhomog.pipeline(text)), parameters(trained)
    direction = 3 * gradhomog.pipeline(text).combine(rows(trained)[:3]) + l1 * before.sign()
    train(trained, 1)
    torch.testing.assert_close(parameters(trained), before - 0.01 * direction)
    assert step.report is not None
    assert step.report.tasks == (0, 1, 2)


@pytest.mark.parametrize("text", ["none", "mgda", "upgrad", "gradnorm"])
def test_a_loss_of_weight_zero_is_displayed_and_absent_from_the_step(text: str) -> None:
    weighted, alone = compiled(loss_weights=[1, 0, 2]), compiled(loss_weights=[1, 7, 2])
    found, expected = homogenize(weighted, gradhomog.pipeline(text)), homogenize(alone, gradhomog.pipeline(text))
    losses = expected._losses
    expected._losses = lambda *batch: {**losses(*batch), "DirichletBC": None}
    for each in (weighted, alone):
        train(each)
    torch.testing.assert_close(parameters(weighted), parameters(alone), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(parameters(weighted), parameters(compiled()))
    assert found.weights().keys() == {"pde", "IC"}
    assert len(weighted.losshistory.loss_train[-1]) == 3


@pytest.mark.parametrize(
    ("names", "used"), [(None, ("pde", "DirichletBC", "IC")), (["equation", "walls", "start"],) * 2], ids=str
)
def test_weights_and_domains_have_the_default_or_given_names_of_the_losses(names: Any, used: Any) -> None:
    trained, pipe = compiled(), gradhomog.pipeline("static(weights=[1, 2, 3]) + uw")
    step = homogenize(trained, pipe, names=names)
    assert (step.weights(), step.names) == ({}, tuple(names or ()))
    train(trained, 1)
    assert step.names == tuple(used)
    assert step.weights() == pytest.approx(dict(zip(used, (0.5, 1.0, 1.5), strict=True)))
    assert used[1] in str(pipe.state_dict())
    replaced = homogenize(trained := compiled(), gradhomog.pipeline("trimmed_mean"))
    train(trained, 1)
    assert replaced.report is not None
    assert replaced.weights() == {}  # rows were replaced


def test_momentum_after_averages_of_rows_warns() -> None:
    trained = compiled("adam")
    with pytest.warns(MomentumWarning, match=r"tracked averages rows over steps, and Adam .* factor 0\.9"):
        homogenize(trained, gradhomog.pipeline("tracked"))
    trained.compile(torch.optim.Adam(trained.net.parameters(), lr=1e-3, betas=(0.0, 0.999)), verbose=0)
    homogenize(trained, gradhomog.pipeline("tracked"))  # warnings are errors


def test_several_residuals_and_conditions_of_one_class_are_numbered() -> None:
    def system(x: Tensor, u: Tensor) -> list[Tensor]:
        return [dde.grad.jacobian(u, x, i=i, j=0) - u[:, 1 - i : 2 - i] for i in (0, 1)]

    domain = dde.geometry.Rectangle([0, 0], [1, 1])
    edges = [dde.icbc.DirichletBC(domain, lambda x: 0, lambda _, on: on, component=i) for i in (0, 1)]
    trained = model(dde.data.PDE(domain, system, edges, num_domain=9, num_boundary=8), outputs=2)
    trained.compile("sgd", lr=0.01, verbose=0)
    step = homogenize(trained, gradhomog.pipeline("upgrad"))
    train(trained, 1)
    assert step.names == ("pde 0", "pde 1", "DirichletBC 0", "DirichletBC 1")
    data = dde.data.Function(domain, lambda x: x[:, :1], 8, 8)
    step = homogenize(trained := compiled(data=data), gradhomog.pipeline("none"))
    train(trained, 1)
    assert step.names == ("loss",)


@pytest.mark.parametrize("names", [["pde", "edge", "edge"], "abc"])
def test_equal_names_and_a_text_are_an_error_before_training_and_too_few_at_the_first_step(names: Any) -> None:
    trained = compiled()
    homogenize(trained, gradhomog.pipeline("none"), names=["pde"])
    with pytest.raises(OptionError, match="one name for each of the 3 losses"):
        train(trained, 1)
    before = trained.train_step
    with pytest.raises(OptionError, match="`names` must be a list of different names, one for each loss"):
        homogenize(trained, gradhomog.pipeline("none"), names=names)
    assert trained.train_step is before


def test_a_second_phase_continues_with_the_state_of_the_pipeline_and_one_with_lbfgs_is_deepxdes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    homogenized, plain, pipe = compiled(), compiled(), gradhomog.pipeline("uw")
    for phase in (1, 2):
        homogenized.compile("adam", lr=0.01, verbose=0)
        homogenize(homogenized, pipe)
        train(homogenized, 2)
        assert pipe.steps == 2 * phase
    plain.net.load_state_dict(homogenized.net.state_dict())
    for option in ("maxiter", "iter_per_step", "fun_per_step"):
        monkeypatch.setitem(dde.optimizers.LBFGS_options, option, 5)
    for trained in (homogenized, plain):
        trained.compile("L-BFGS", verbose=0)
        train(trained, None)
    assert torch.equal(parameters(homogenized), parameters(plain))
    assert pipe.steps == 4


def test_training_after_a_compile_that_removed_an_unused_train_step_is_an_error_until_the_next_compile() -> None:
    trained, plain = compiled(), compiled()
    homogenize(trained, gradhomog.pipeline("upgrad"))
    before = parameters(trained)
    trained.compile("sgd", lr=0.01, verbose=0)
    with pytest.raises(OptionError, match=r"Call homogenize after model\.compile"):
        train(trained, 2)
    assert torch.equal(parameters(trained), before)
    for each in (trained, plain):
        each.compile("sgd", lr=0.01, verbose=0)
        train(each, 2)
    assert torch.equal(parameters(trained), parameters(plain))


def test_another_backend_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = compiled()
    monkeypatch.setattr(dde.backend, "backend_name", "jax")
    with pytest.raises(OptionError, match="must be pytorch; got jax"):
        homogenize(trained, gradhomog.pipeline("upgrad"))


def test_a_loss_that_is_not_finite_is_named_and_deepxdes_data_are_restored() -> None:
    trained = compiled(loss=["MSE", lambda target, error: (error / 0).abs().mean(), "MSE"])
    homogenize(trained, gradhomog.pipeline("upgrad"))
    before = parameters(trained)
    with pytest.raises(NonfiniteError, match="DirichletBC"):
        trained._train_step(*trained.data.train_next_batch())
    assert torch.equal(parameters(trained), before)
    assert "losses_train" not in vars(trained.data)


def test_training_continues_from_a_saved_model_and_the_saved_state_of_the_pipeline(tmp_path: Path) -> None:
    whole, pipe = compiled("adam"), gradhomog.pipeline("uw")
    homogenize(whole, pipe)
    train(whole, 3)
    path, state = whole.save(str(tmp_path / "model")), pipe.state_dict()
    train(whole, 3)

    resumed, pipe = compiled("adam"), gradhomog.pipeline("uw")
    pipe.load_state_dict(state)
    homogenize(resumed, pipe)
    resumed.restore(path)
    train(resumed, 3)
    assert torch.equal(parameters(resumed), parameters(whole))


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        (model, "upgrad", r"must be compiled: call model\.compile"),
        (lambda: compiled().net, "upgrad", r"must be a deepxde\.Model; got FNN"),
        (compiled, "rotate", "rotate reads features, which DeepXDE does not compute"),
        (lambda: compiled("NNCG", lr=None), "upgrad", "first-order optimizer such as Adam; got NNCG"),
        (
            lambda: compiled(torch.optim.LBFGS([torch.zeros(1)]), lr=None),
            "upgrad",
            "first-order optimizer such as Adam; got LBFGS",
        ),
    ],
)
def test_an_object_or_pipeline_that_cannot_work_is_an_error(make: Any, text: str, message: str) -> None:
    given = make()
    before = getattr(given, "train_step", None)
    with pytest.raises(OptionError, match=message):
        homogenize(given, gradhomog.pipeline(text))
    assert getattr(given, "train_step", None) is before or before is None
