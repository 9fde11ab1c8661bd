"""Steps in the metric of an optimizer are those of rows times P^½, with a direction times P^-½."""

import pytest
import torch
from torch import optim

import gradhomog
from gradhomog import OptionError, TaskBatch
from tests.adapters import checks
from tests.autograd.networks import Model, inputs

OPTIMIZERS = {
    "adam": lambda groups: optim.Adam(groups, lr=0.02, betas=(0.8, 0.99)),
    "amsgrad": lambda groups: optim.AdamW(groups, lr=0.02, amsgrad=True),
    "nadam": lambda groups: optim.NAdam(groups, lr=0.02),
    "rmsprop": lambda groups: optim.RMSprop(groups, lr=0.02, centered=True),
    "adagrad": lambda groups: optim.Adagrad(groups, lr=0.02, initial_accumulator_value=0.1),
    "sgd": lambda groups: optim.SGD(groups, lr=0.02, momentum=0.9),
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


def by_hand(model, losses, text, metric):
    shared = dict(model.encoder.named_parameters())
    rows = [torch.autograd.grad(loss, list(shared.values()), retain_graph=True) for loss in losses]
    columns = zip(*rows, strict=True)
    stacked = {n: torch.stack(parts) * metric[n].sqrt() for n, parts in zip(shared, columns, strict=True)}
    direction = gradhomog.pipeline(text).combine(stacked, losses=torch.stack(losses).detach())
    return {name: part / metric[name].sqrt() for name, part in direction.items()}


@pytest.mark.slow_after_first
@pytest.mark.parametrize("text", ["pcgrad", "aligned_mtl", "and_mask"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("call", ["rows", "low", "loss", "accumulated"])
def test_steps_equal_those_of_rows_multiplied_by_hand(name, text, call):
    model = Model()
    first, *others = model.encoder.parameters()
    optimizer = OPTIMIZERS[name]([{"params": [first], "lr": 0.01}, {"params": [*others, *model.heads.parameters()]}])
    pipe, options = gradhomog.pipeline(text), {"parameters": model.encoder, "metric": optimizer}
    for step in range(3):
        losses = model.losses(model.encoder(inputs(seed=step)))
        relative = {n: 0.5 if p is first else 1.0 for n, p in model.encoder.named_parameters()}
        metric = {n: diagonal(name, optimizer, p, relative[n]) for n, p in model.encoder.named_parameters()}
        expected = by_hand(model, losses, text, metric)
        optimizer.zero_grad()
        if call in ("rows", "low"):
            gradhomog.backward(losses, pipe, memory=call, **options)
        elif call == "loss":
            gradhomog.loss(losses, pipe, **options).backward()
        else:
            with gradhomog.accumulated(pipe, **options) as several:
                several.add([loss / 4 for loss in losses])
                several.add([3 * loss / 4 for loss in model.losses(model.encoder(inputs(seed=step)))])
        found = {n: p.grad for n, p in model.encoder.named_parameters()}
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        optimizer.step()


def soap_metric(optimizer, parameter, rate):
    """P^½ of one parameter as a symmetric matrix, from algorithm 3 of SOAP (arXiv 2409.11321)."""
    state, group = optimizer.state.get(parameter, {}), optimizer.param_groups[0]
    if not state or group["step"] == 1:  # the first step only starts the eigenbases
        return torch.eye(parameter.numel(), dtype=torch.float64) * rate**0.5
    square = state["exp_avg_sq"] / (1 - group["betas"][1] ** (group["step"] - 1))
    bases = [torch.eye(n) if len(q) == 0 else q for n, q in zip(parameter.shape, state["Q"], strict=True)]
    basis = bases[0].double() if len(bases) == 1 else torch.kron(*(q.double() for q in bases))
    return basis @ torch.diag((rate / (square.sqrt().reshape(-1) + 1e-8)).sqrt()) @ basis.T


@pytest.mark.parametrize("text", ["pcgrad", "aligned_mtl", "upgrad"])
@pytest.mark.parametrize("call", ["rows", "low", "loss", "scale"])
def test_steps_with_soap_equal_those_of_rows_times_a_dense_root(text, call):
    soap = pytest.importorskip("pytorch_optimizer").SOAP
    model = Model()
    first, *others = model.encoder.parameters()
    rates = [{"params": [first], "lr": 0.01}, {"params": [*others, *model.heads.parameters()]}]
    optimizer = soap(rates, lr=0.02, precondition_frequency=2)
    for step in range(6):
        pipe = gradhomog.pipeline(text)
        losses = model.losses(model.encoder(inputs(seed=step)))
        shared = dict(model.encoder.named_parameters())
        roots = {n: soap_metric(optimizer, p, 0.5 if p is first else 1.0) for n, p in shared.items()}
        rows = [torch.autograd.grad(loss, list(shared.values()), retain_graph=True) for loss in losses]
        stacked = {n: torch.stack(parts) for n, parts in zip(shared, zip(*rows, strict=True), strict=True)}
        multiplied = {n: (block.flatten(1) @ roots[n]).view_as(block) for n, block in stacked.items()}
        direction = gradhomog.pipeline(text).combine(multiplied, losses=torch.stack(losses).detach())
        expected = {n: torch.linalg.solve(roots[n], d.flatten()).view_as(d) for n, d in direction.items()}
        optimizer.zero_grad()
        if call == "scale":
            metric = gradhomog.OptimizerMetric(optimizer, shared)
            found = metric.unscale(pipe.combine(metric.scale(stacked), losses=torch.stack(losses).detach()))
            gradhomog.backward(losses, gradhomog.pipeline(text), parameters=model.encoder, metric=optimizer)
        elif call == "loss":
            gradhomog.loss(losses, pipe, parameters=model.encoder, metric=optimizer).backward()
            found = {n: p.grad for n, p in shared.items()}
        else:
            gradhomog.backward(losses, pipe, parameters=model.encoder, metric=optimizer, memory=call)
            found = {n: p.grad for n, p in shared.items()}
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)  # SOAP renews its bases in float32
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
