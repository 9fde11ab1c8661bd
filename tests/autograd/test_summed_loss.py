"""`gradhomog.loss(reduction="sum")`: value and scale are those of the sum, the direction is that of the pipeline."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import OptionError, Pipeline


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def losses_of(net: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return dict(zip("abc", (net(x) - y).square().mean(0).unbind(), strict=True))


def summed(net: nn.Module, losses: Mapping[str, Tensor | None], pipe: Pipeline | str) -> Tensor:
    return gradhomog.loss(losses, gradhomog.pipeline(pipe), parameters=net, reduction="sum")


def gradient(net: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])


def rows(net: nn.Module, losses: dict[str, Tensor]) -> Tensor:
    parts = [torch.autograd.grad(loss, [*net.parameters()], retain_graph=True) for loss in losses.values()]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in parts])


def test_the_empty_pipeline_gives_the_value_and_the_gradient_of_the_sum() -> None:
    net, plain = network(), network()
    total, expected = summed(net, losses_of(net), "none"), torch.stack([*losses_of(plain).values()]).sum()
    assert torch.equal(total, expected)
    total.backward()
    expected.backward()
    torch.testing.assert_close(gradient(net), gradient(plain), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("text", ["upgrad", "pcgrad", "trimmed_mean", "static(weights=[1, 2, 5])"])
@pytest.mark.parametrize("factor", [1.0, 0.25, 8.0])
def test_the_gradient_is_the_direction_times_the_number_of_losses_and_the_incoming_gradient(
    text: str, factor: float
) -> None:
    net = network()
    expected = 3 * factor * gradhomog.pipeline(text).combine(rows(net, losses_of(net)), list(losses_of(net).values()))
    (summed(net, losses_of(net), text) * factor).backward()
    torch.testing.assert_close(gradient(net), expected)


def test_an_absent_loss_is_left_out_of_sum_and_scale() -> None:
    net = network()
    losses = losses_of(net)
    expected = 2 * gradhomog.pipeline("upgrad").combine(rows(net, {name: losses[name] for name in "ac"}))
    total = summed(net, {**losses, "b": None}, "upgrad")
    torch.testing.assert_close(total.detach(), (losses["a"] + losses["c"]).detach())
    total.backward()
    torch.testing.assert_close(gradient(net), expected)


@pytest.mark.parametrize("kept", ["one", 2, "all"])
def test_averages_of_constant_rows_have_the_scale_of_all_losses(kept: int | str) -> None:
    net = network()
    pipe = gradhomog.pipeline([("tracked", {"method": "upgrad", "rows": kept})])
    for _ in range(3):
        net.zero_grad()
        summed(net, losses_of(net), pipe).backward()
    expected = 3 * gradhomog.pipeline("upgrad").combine(rows(net, losses_of(net)))
    torch.testing.assert_close(gradient(net), expected)


def test_weighted_heads_receive_the_gradient_of_the_weighted_sum() -> None:
    net, heads = network(), nn.ModuleList(nn.Linear(3, 1).double() for _ in range(2))
    losses = [head(net(torch.ones(1, 2).double())).square().sum() for head in heads]
    pipe = gradhomog.pipeline("static(weights=[1, 3])")
    gradhomog.loss(losses, pipe, parameters=net, reduction="sum", heads="weighted").backward()
    expected = torch.autograd.grad(
        sum(w * head(net(torch.ones(1, 2).double())).square().sum() for w, head in zip((0.5, 1.5), heads, strict=True)),
        [*net.parameters(), *heads.parameters()],
    )
    found = [parameter.grad for parameter in (*net.parameters(), *heads.parameters())]
    torch.testing.assert_close(found, list(expected))


def test_without_gradients_it_is_the_plain_sum() -> None:
    net, pipe = network(), gradhomog.pipeline("uw")
    with torch.no_grad():
        total = summed(net, losses_of(net), pipe)
    assert not total.requires_grad
    torch.testing.assert_close(total, torch.stack([*losses_of(net).values()]).sum().detach())
    assert pipe.steps == 0


def test_a_dropped_loss_is_left_out_of_the_sum_of_gradients() -> None:
    net = network()
    losses: dict[str, Tensor | None] = {**losses_of(net), "b": losses_of(net)["b"] * torch.inf}
    expected = rows(net, losses_of(net))[[0, 2]].sum(0)
    summed(net, losses, gradhomog.pipeline("none", nonfinite="drop")).backward()
    torch.testing.assert_close(gradient(net), expected)


def test_an_adversary_that_maximizes_the_sum_is_refused() -> None:
    net = network()
    total = -summed(net, losses_of(net), "none")
    with pytest.raises(OptionError, match="must be minimized"):
        total.backward()
