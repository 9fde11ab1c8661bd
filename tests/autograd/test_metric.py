"""Steps in the metric of an optimizer are those of rows times P^½, with a direction times P^-½."""

import pytest
import torch
from torch import optim

import gradhomog
from gradhomog import NonfiniteError, OptionError, TaskBatch
from tests.adapters import checks
from tests.autograd.networks import Model, inputs, take_step

OPTIMIZERS = {
    "adam": lambda groups: optim.Adam(groups, lr=0.02, betas=(0.8, 0.99)),
    "amsgrad": lambda groups: optim.AdamW(groups, lr=0.02, amsgrad=True),
    "nadam": lambda groups: optim.NAdam(groups, lr=0.02),
    "rmsprop": lambda groups: optim.RMSprop(groups, lr=0.02, centered=True),
    "adagrad": lambda groups: optim.Adagrad(groups, lr=0.02, initial_accumulator_value=0.1),
    "sgd": lambda groups: optim.SGD(groups, lr=0.02, momentum=0.9),
    "soap": lambda groups: pytest.importorskip("pytorch_optimizer").SOAP(groups, lr=0.02, precondition_frequency=2),
}


def diagonal(name, optimizer, parameter, rate):
    """P of one parameter, from the formulas of the documentation of `torch.optim`."""
    state = optimizer.state.get(parameter, {})
    if name == "sgd" or not state or state["step"] == 0:
        return torch.full_like(parameter, rate)
    if name == "adagrad":
        return rate / (state["sum"].sqrt() + 1e-10)
    if name == "rmsprop":
        return rate / ((state["square_avg"] - state["grad_avg"] ** 2).sqrt() + 1e-8)
    decay = 0.99 if name == "adam" else 0.999
    square = state["max_exp_avg_sq" if name == "amsgrad" else "exp_avg_sq"]
    return rate / ((square / (1 - decay ** float(state["step"]))).sqrt() + 1e-8)


def root_of_soap(optimizer, parameter, rate):
    """P^½ of one parameter as a symmetric matrix, from algorithm 3 of SOAP (arXiv 2409.11321)."""
    state, group = optimizer.state.get(parameter, {}), optimizer.param_groups[0]
    if not state or group["step"] == 1:  # the first step only starts the eigenbases
        return torch.eye(parameter.numel(), dtype=torch.float64) * rate**0.5
    square = state["exp_avg_sq"] / (1 - group["betas"][1] ** (group["step"] - 1))
    bases = [torch.eye(n) if len(q) == 0 else q for n, q in zip(parameter.shape, state["Q"], strict=True)]
    basis = bases[0].double() if len(bases) == 1 else torch.kron(*(q.double() for q in bases))
    return basis @ torch.diag((rate / (square.sqrt().reshape(-1) + 1e-8)).sqrt()) @ basis.T


def by_hand(name, model, losses, text, optimizer, rates):
    """The direction of rows that are multiplied by P^½, a symmetric matrix per parameter, divided by it again."""
    shared = dict(model.encoder.named_parameters())
    if name == "soap":
        roots = {n: root_of_soap(optimizer, p, rates[n]) for n, p in shared.items()}
    else:
        roots = {n: torch.diag(diagonal(name, optimizer, p, rates[n]).sqrt().flatten()) for n, p in shared.items()}
    rows = [torch.autograd.grad(loss, list(shared.values()), retain_graph=True) for loss in losses]
    stacked = {n: torch.stack(parts) for n, parts in zip(shared, zip(*rows, strict=True), strict=True)}
    multiplied = {n: (block.flatten(1) @ roots[n]).view_as(block) for n, block in stacked.items()}
    direction = gradhomog.pipeline(text).combine(multiplied, losses=torch.stack(losses).detach())
    return {n: torch.linalg.solve(roots[n], part.flatten()).view_as(part) for n, part in direction.items()}


@pytest.mark.slow_after_first
@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, text) for name in OPTIMIZERS for text in ("pcgrad", "aligned_mtl")),
        *((name, "and_mask" if name != "soap" else "upgrad") for name in OPTIMIZERS),  # masks depend on the root
    ],
)
@pytest.mark.parametrize("call", ["rows", "low", "loss", "accumulated"])
def test_steps_equal_those_of_rows_multiplied_by_hand(name, text, call):
    model = Model()
    first, *others = model.encoder.parameters()
    optimizer = OPTIMIZERS[name]([{"params": [first], "lr": 0.01}, {"params": [*others, *model.heads.parameters()]}])
    rates = {n: 0.5 if p is first else 1.0 for n, p in model.encoder.named_parameters()}
    options = {"parameters": model.encoder, "metric": optimizer}
    for step in range(6 if name == "soap" else 3):
        losses = model.losses(model.encoder(inputs(seed=step)))
        expected = by_hand(name, model, losses, text, optimizer, rates)
        shares = (0.25, 0.75) if call == "accumulated" else (1.0,)
        batches = ([share * loss for loss in model.losses(model.encoder(inputs(seed=step)))] for share in shares)
        optimizer.zero_grad()
        memory = {"memory": call} if call in ("rows", "low") else {}
        take_step(call, batches, gradhomog.pipeline(text), **options, **memory)
        found = {n: p.grad for n, p in model.encoder.named_parameters()}
        # SOAP renews its bases in float32.
        rtol, atol = (1e-4, 1e-6) if name == "soap" else (1e-9, 1e-12)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
        optimizer.step()


def test_a_conflict_exists_only_in_the_metric():
    w = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
    adam = optim.Adam([w])
    w.grad = torch.tensor([0.01, 1.0], dtype=torch.float64)
    adam.step()
    rows = torch.tensor([[3.0, 1.0], [-1.0, 20.0]], dtype=torch.float64)
    for metric, is_conflict in ((None, False), (adam, True)):
        w.grad = None
        report = gradhomog.backward(list(rows @ w), gradhomog.pipeline("pcgrad"), parameters=[w], metric=metric)
        assert (report.cosines.min() < 0) == is_conflict
        assert torch.equal(report.direction["0"], w.grad)
        assert torch.equal(w.grad, rows.mean(0)) != is_conflict


def test_elements_without_a_second_moment_count_as_the_mean():
    w = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    adam = optim.Adam([w])
    w.grad = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)
    adam.step()
    metric = gradhomog.OptimizerMetric(adam, {"w": w})
    found = metric.scale({"w": torch.ones(1, 3, dtype=torch.float64)})["w"][0]
    torch.testing.assert_close(found, torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64) ** -0.5, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("text", ["none", "pcgrad", "mgda", "graddrop", "reweight(beta=1.0)"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_element_whose_second_moment_has_overflowed_has_a_direction_of_0(name, text, dtype):
    """One large finite gradient makes v infinite; the optimizer does not change the element any more."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(4).to(dtype))
    optimizer, pipe = OPTIMIZERS[name]([w]), gradhomog.pipeline(text)
    for step in range(4):
        optimizer.zero_grad()
        losses = [(w[:3].float() - 3).square().sum(), (w[1:].float() + 3).square().sum()]
        losses[0] = losses[0] + (4e4 if dtype == torch.float16 else 1e22) * (step == 0) * w[0]
        moments = [value[0] for key, value in optimizer.state[w].items() if key in ("exp_avg_sq", "square_avg", "sum")]
        if (
            name == "rmsprop" and moments and moments[0].isinf() and dtype != torch.float16
        ):  # ∞ - ∞, of the squared mean
            with pytest.raises(NonfiniteError, match=r"second moment .* is NaN"):
                gradhomog.OptimizerMetric(optimizer, {"w": w})
            return
        gradhomog.backward(losses, pipe, parameters=[w], metric=optimizer)
        assert w.grad.isfinite().all()
        if text != "none" and any(value.isinf() for value in moments) and name != "soap":
            assert w.grad[0] == 0
        before = w.detach().clone()
        optimizer.step()
        with torch.no_grad():
            w.copy_(before)  # without the large step of an optimizer that has no second moment


def test_a_direction_that_overflows_in_the_dtype_of_its_parameter_is_an_error():
    w = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = optim.Adam([w])
    w.grad = torch.ones_like(w)
    optimizer.step()
    optimizer.state[w]["exp_avg_sq"].fill_(1e-3)  # √v̂ = 1
    metric = gradhomog.OptimizerMetric(optimizer, {"w": w})
    found = metric.unscale({"w": torch.tensor([6e4, 1.0])})
    torch.testing.assert_close(found["w"], torch.tensor([6e4, 1.0]), rtol=1e-2, atol=0)
    with pytest.raises(NonfiniteError, match=r"overflows when it is divided by the preconditioner of Adam.*Nothing"):
        metric.unscale({"w": torch.tensor([7e4, 1.0])})


def test_a_second_moment_that_is_nan_is_reported():
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = optim.Adam([w])
    w.grad = torch.tensor([torch.nan, 1.0])
    optimizer.step()
    with pytest.raises(NonfiniteError, match=r"state of the optimizer in `metric` is NaN.* Load an earlier"):
        gradhomog.OptimizerMetric(optimizer, {"w": w})


def test_derivatives_are_those_of_a_constant_metric():
    model = Model(tasks=2)
    optimizer = optim.Adam(model.parameters())
    model.backward("none")
    optimizer.step()
    weight = model.encoder[0].weight

    def written(scale):
        model.zero_grad()
        losses = [scale * loss for loss in model.losses(model.encoder(inputs()))]
        report = gradhomog.backward(
            losses, gradhomog.pipeline("imtl_g"), parameters=model.encoder, metric=optimizer, create_graph=True
        )
        return report.direction["0.weight"].square().sum()

    before = weight.detach().clone()
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(written(scale), scale)
    assert torch.equal(weight.detach(), before)
    eps = 1e-6
    expected = (written(1 + eps) - written(1 - eps)) / (2 * eps)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-12)


def test_half_rows_are_scaled_in_the_dtype_of_the_state():
    model = Model()
    model.encoder.to(torch.bfloat16)
    optimizer = optim.Adam(model.parameters())
    for step in range(2):
        losses = model.losses(model.encoder(inputs(seed=step).bfloat16()).double())[:2]
        optimizer.zero_grad()
        gradhomog.backward(losses, gradhomog.pipeline("upgrad"), parameters=model.encoder, metric=optimizer)
        assert all(p.grad.dtype == torch.bfloat16 and p.grad.isfinite().all() for p in model.encoder.parameters())
        optimizer.step()


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_learner_steps_in_the_metric_of_its_outer_optimizer(engine):
    encoder, head = checks.networks()
    learner = gradhomog.learner("fomaml", encoder, head, homogenizers="pcgrad", engine=engine)
    outer = optim.Adam(learner.parameters(), lr=0.01)
    for seed in range(3):
        batch = checks.tasks(seed=seed)
        rows = learner.rows(TaskBatch.stack(batch)).jacobian
        metric = gradhomog.OptimizerMetric(outer, learner.named_parameters())
        expected = metric.unscale(gradhomog.pipeline("pcgrad").combine(metric.scale(rows)))
        learner.step(batch, outer, metric=outer)
        found = {name: parameter.grad for name, parameter in learner.named_parameters().items()}
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("metric", "text", "options", "message"),
    [
        (lambda model: optim.Adamax(model.parameters()), "pcgrad", {}, "`metric` must be one of .*Adam.* got Adamax"),
        (lambda model: optim.Adam(model.heads.parameters()), "pcgrad", {}, "must hold all shared parameters; .*weight"),
        (lambda model: optim.Adam(model.parameters()), "tracked", {}, "tracked keeps rows from step to step"),
        (lambda model: optim.Adam(model.parameters()), "pcgrad", {"level": "features"}, "must be None if level"),
        (lambda model: 0.1, "pcgrad", {}, "got float"),
    ],
)
def test_what_has_no_metric_raises(metric, text, options, message):
    model = Model()
    z = model.encoder(inputs())
    with pytest.raises(OptionError, match=message):
        gradhomog.backward(
            model.losses(z), gradhomog.pipeline(text), parameters=model.encoder, features=z, metric=metric(model),
            **options,
        )  # fmt: skip
    assert all(parameter.grad is None for parameter in model.parameters())
