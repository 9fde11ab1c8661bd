"""`HomogenizedLoss` with Lightning itself: "none" is Lightning, the direction is the pipeline's, logs and state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradhomog
from gradhomog import MomentumWarning, OptionError

from .lightning_modules import Adversarial, HomogenizedLoss, L, Manual, TwoTasks, batches, fit
from .lightning_on_ranks import fabric_loop
from .measures import parameters, rows

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice, and deprecations within Lightning

Adam, SGD = torch.optim.Adam, torch.optim.SGD


@pytest.mark.parametrize(
    ("kind", "optimizer", "training"),
    [
        (TwoTasks, SGD, {}),
        (TwoTasks, Adam, {}),
        (TwoTasks, SGD, {"accumulate_grad_batches": 3}),
        (TwoTasks, SGD, {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"}),
        (TwoTasks, SGD, {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}),
        (TwoTasks, SGD, {"detect_anomaly": True}),
        (Manual, SGD, {}),
    ],
)
@pytest.mark.parametrize("inspect", [False, True])  # one backward pass, or one per task
def test_without_homogenizers_training_is_lightnings(
    kind: Any, optimizer: Any, training: dict[str, Any], inspect: bool
) -> None:
    plain, homogenized = kind(None, optimizer), kind("none", optimizer, inspect=inspect)
    start = parameters(plain)
    for module in (plain, homogenized):
        fit(module, **training)
    assert not torch.allclose(parameters(plain), start)
    torch.testing.assert_close(parameters(homogenized), parameters(plain), rtol=1e-10, atol=1e-12)


def test_a_generator_and_a_discriminator_train_as_with_vqgans_adaptive_weight() -> None:
    original, homogenized = Adversarial(False), Adversarial(True)
    for module in (original, homogenized):
        fit(module)
    torch.testing.assert_close(parameters(homogenized), parameters(original), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("batches", [1, 3])
def test_half_precision_is_lightnings_without_homogenizers(batches: int) -> None:
    plain, homogenized = TwoTasks(None), TwoTasks("none")
    for module in (plain, homogenized):
        fit(module.float(), precision="bf16-mixed", accumulate_grad_batches=batches)
    # A relative error of 2^-8 in the gradients, twelve steps with rate 0.01.
    torch.testing.assert_close(parameters(homogenized), parameters(plain), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("scale", "steps"), [(2.0**10, 12), (2.0**40, 0)], ids=["no overflow", "overflow"])
def test_a_gradient_scaler_scales_and_skips_as_in_lightning(scale: float, steps: int) -> None:
    found = []
    for method in (None, "none"):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000, backoff_factor=1 - 1e-6)
        plugin = L.plugins.MixedPrecision("16-mixed", "cpu", scaler=scaler)
        module = TwoTasks(method).float()
        fit(module, plugins=[plugin], gradient_clip_val=5.0)
        found.append(parameters(module))
    # A relative error of 2^-11 in the gradients, twelve steps with rate 0.01.
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-2)
    assert module.homogenized_loss.pipe.steps == steps


@pytest.mark.parametrize("text", ["upgrad", "trimmed_mean", "static(weights=[1, 3])"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_step_follows_the_direction_of_the_losses_gradients(text: str, reduction: str) -> None:
    module = TwoTasks(text, reduction=reduction)
    losses = module.losses(next(iter(batches())))
    jacobian = rows(losses.values(), module.encoder)
    before = parameters(module.encoder)
    fit(module, epochs=1, limit_train_batches=1)
    length = {"sum": 2, "mean": 1}[reduction]
    expected = before - 1e-2 * length * gradhomog.pipeline(text).combine(jacobian)
    torch.testing.assert_close(parameters(module.encoder), expected)


def test_accumulated_batches_are_homogenized_separately() -> None:
    module = TwoTasks("static(weights=[1, 3])")
    weighted = TwoTasks(None)
    weighted.loss = lambda x: sum(w * loss for w, loss in zip((0.5, 1.5), weighted.losses(x).values(), strict=True))
    before = parameters(module.encoder)
    for each in (module, weighted):
        fit(each, epochs=1, accumulate_grad_batches=6)
    assert module.homogenized_loss.pipe.steps == 6
    assert not torch.allclose(parameters(module.encoder), before)
    torch.testing.assert_close(parameters(module.encoder), parameters(weighted.encoder))


@pytest.mark.parametrize("kind", [TwoTasks, Manual])
@pytest.mark.parametrize("weights_only", [False, True])
def test_a_run_resumed_from_a_checkpoint_continues_exactly(kind: Any, weights_only: bool, tmp_path: Path) -> None:
    whole, resumed = kind("uw", Adam), kind("uw", Adam)
    fit(whole, epochs=4)
    fit(kind("uw", Adam), epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    fit(resumed, epochs=4, path=tmp_path / "half.ckpt", weights_only=weights_only)
    assert resumed.homogenized_loss.pipe.steps == whole.homogenized_loss.pipe.steps == 24
    assert torch.equal(parameters(resumed), parameters(whole))


def test_a_checkpoint_without_the_state_warns(tmp_path: Path) -> None:
    fit(TwoTasks(None)).save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.warns(UserWarning, match="continues at step 12 with new homogenizers"):
        fit(TwoTasks("uw"), epochs=3, path=tmp_path / "plain.ckpt")


def test_several_objects_have_separate_states_and_metrics(tmp_path: Path) -> None:
    def module() -> Any:
        made = Manual("uw", prefix="one/")
        made.other = HomogenizedLoss(gradhomog.pipeline("uw"), made.encoder, prefix="two/")
        made.configure_callbacks = lambda: [made.homogenized_loss, made.other]
        plain_loss = made.loss
        made.loss = lambda x: plain_loss(x) if made.homogenized_loss.pipe.steps < 9 else made.other(made.losses(x))
        return made

    first, second = module(), module()
    trainer = fit(first, callbacks=[])
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    assert {"one/loss/depth", "two/loss/depth"} <= {*trainer.callback_metrics}
    fit(second, path=tmp_path / "end.ckpt", callbacks=[])
    assert (second.homogenized_loss.pipe.steps, second.other.pipe.steps) == (9, 3)


def test_validation_logs_the_plain_sum_and_takes_no_step() -> None:
    module, plain = TwoTasks("uw"), TwoTasks(None)
    found = [fit(each, epochs=1, validation=batches(2)).callback_metrics for each in (TwoTasks("none"), plain)]
    torch.testing.assert_close(found[0]["validation"], found[1]["validation"])
    fit(module, epochs=1, validation=batches(2))
    assert module.homogenized_loss.pipe.steps == 6


def test_a_task_without_a_loss_is_absent() -> None:
    module = TwoTasks("uw")
    losses = module.losses
    module.losses = lambda x: {**losses(x), "normals": None}
    found = fit(module, epochs=1).callback_metrics
    assert module.homogenized_loss.report.tasks == (0,)
    assert {*found} == {"loss/depth", "weight/depth"}


def test_an_iterator_of_parameters_serves_every_step() -> None:
    module, reference = TwoTasks("upgrad"), TwoTasks("upgrad")
    module.homogenized_loss = HomogenizedLoss(gradhomog.pipeline("upgrad"), module.encoder.parameters())
    for each in (module, reference):
        fit(each)
    assert torch.equal(parameters(module), parameters(reference))


def test_homogenizers_that_transform_features_receive_them() -> None:
    module = TwoTasks("rotograd")

    def loss(x: Tensor) -> Tensor:
        homogenized = module.homogenized_loss
        views = gradhomog.task_features(module.features(x), homogenized.pipe, tasks=2)
        losses = [module.depth(views[0]).square().mean(), module.normals(views[1]).square().mean()]
        return homogenized(losses, features=views) if torch.is_grad_enabled() else torch.stack(losses).sum()

    module.loss = loss
    fit(module)
    assert module.homogenized_loss.pipe.steps == 12


def test_momentum_after_averages_of_rows_warns() -> None:
    with pytest.warns(MomentumWarning, match="tracked averages rows over steps, and Adam"):
        fit(TwoTasks("tracked", Adam), epochs=1)


def test_lbfgs_is_refused_before_a_parameter_changes() -> None:
    module = TwoTasks("upgrad", torch.optim.LBFGS)
    before = parameters(module)
    with pytest.raises(OptionError, match="first-order optimizer such as Adam; got L-BFGS"):
        fit(module)
    assert torch.equal(parameters(module), before)


def test_an_object_that_is_not_a_callback_is_an_error() -> None:
    module = TwoTasks("upgrad")
    for _ in range(2):  # also after a training as a callback
        with pytest.raises(OptionError, match="must be one of the trainer's callbacks"):
            fit(module, callbacks=[])
        fit(module, epochs=1)


def test_ranks_with_different_tasks_are_an_error() -> None:
    with pytest.raises(OptionError, match=r"distributes the examples of a batch: `group` must be Ranks\('batch'"):
        fit(TwoTasks("upgrad", group=gradhomog.Ranks("tasks")))


def test_a_callback_whose_result_is_not_returned_is_an_error_before_a_parameter_changes() -> None:
    module = TwoTasks("upgrad")
    fit(module, epochs=1)  # a report of an earlier training does not count
    module.training_step = lambda batch, batch_idx: sum(module.losses(batch).values())
    before = parameters(module)
    with pytest.raises(OptionError, match="is not homogenized: `training_step` of TwoTasks must call it"):
        fit(module)
    assert torch.equal(parameters(module), before)


def test_two_objects_with_one_prefix_are_an_error() -> None:
    module = TwoTasks("uw")
    other = HomogenizedLoss(gradhomog.pipeline("uw"), module.encoder)
    module.configure_callbacks = lambda: [module.homogenized_loss, other]  # type: ignore[method-assign]
    with pytest.raises(OptionError, match="must have another prefix; two have ''"):
        fit(module, callbacks=[])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1, 2]}, "options must be arguments of gradhomog.loss; got weights"),
        ({"report": print}, "options must be arguments of gradhomog.loss; got report"),
        ({"log": ["gradients"]}, "`log` must contain kinds of metrics, of loss, weight"),
        ({"log": "loss"}, "`log` must contain kinds of metrics"),
        ({"pipe": "pcgrad"}, "`pipe` must be a pipeline"),
    ],
    ids=str,
)
def test_unknown_options_are_an_error_before_training(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        HomogenizedLoss(**{"pipe": gradhomog.pipeline("none"), **options})


def test_losses_weights_and_the_smallest_cosine_are_logged() -> None:
    module = TwoTasks("static(weights=[1, 3])", inspect=True)
    losses = module.losses(next(iter(batches())))
    cosine = torch.cosine_similarity(*rows(losses.values(), module.encoder), dim=0)
    found = fit(module, epochs=1, limit_train_batches=1).callback_metrics
    expected = {f"loss/{name}": loss.item() for name, loss in losses.items()}
    expected |= {"weight/depth": 0.5, "weight/normals": 1.5, "cosine/min": cosine.item()}
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-5)


def test_the_names_and_kinds_of_metrics_are_options() -> None:
    module = TwoTasks("upgrad", log=["norm", "cosine"], prefix="train/")
    found = fit(module, epochs=1).callback_metrics
    assert {*found} == {"train/norm/depth", "train/norm/normals", "train/cosine/depth-normals"}


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_a_loop_of_fabric_without_homogenizers_is_that_of_the_sum(precision: str) -> None:
    plain, found = (fabric_loop(method, batches(4), precision=precision) for method in (None, "none"))
    torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-12 if precision == "64-true" else 1e-2)


def test_fabric_saves_and_loads_the_state_of_a_pipeline(tmp_path: Path) -> None:
    whole, again = (fabric_loop("uw", batches(4), saved=tmp_path / "state.ckpt") for _ in range(2))
    assert torch.equal(again, whole)
