"""Faults of TorchOpt 0.7.3, each with an input that shows it; `python faults.py` prints the results.

`FAULTS` maps the name of a fault, the first cell of its row in `docs/guide/torchopt.md`, to the function that returns
the last cell.
"""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torchopt
from torch import Tensor, nn

FAULTS: dict[str, Callable[[], str]] = {}
ONES = torch.ones(1, 2, dtype=torch.float64)


def fault(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a function in `FAULTS`."""

    def register(function: Callable[[], str]) -> Callable[[], str]:
        FAULTS[name] = function
        return function

    return register


def line(inputs: int = 1, outputs: int = 1, bias: bool = False) -> nn.Linear:
    """Return a linear layer of ones in float64."""
    layer = nn.Linear(inputs, outputs, bias=bias).double()
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
    return layer


def error_of(action: Callable[[], Any]) -> str:
    """Return the name of the exception that an action raises."""
    try:
        action()
    except Exception as error:
        return f"`{type(error).__name__}`"
    return "no error"


def nodes(loss: Tensor) -> int:
    """Return the number of nodes in the graph of a loss."""
    stack, visited = [loss.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is not None and node not in visited:
            visited.add(node)
            stack += [parent for parent, _ in node.next_functions]
    return len(visited)


@fault("buffers")
def buffers() -> str:
    counts = []
    for options in ({}, {"detach_buffers": True}):
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        start = torchopt.extract_state_dict(net, **options)
        net(torch.randn(4, 2))
        torchopt.recover_state_dict(net, start)
        counts.append(int(net[1].num_batches_tracked))
    return "`num_batches_tracked` is {}; with `detach_buffers=True` {}".format(*counts)


@fault("copies")
def copies() -> str:
    net = line()
    torchopt.recover_state_dict(net, torchopt.extract_state_dict(net, by="copy"))
    return f"`net.weight.is_leaf` is {net.weight.is_leaf}"


@fault("forgotten recover")
def forgotten_recover() -> str:
    net = line()
    outer = torch.optim.SGD(net.parameters(), lr=1.0)
    torchopt.MetaSGD(net, lr=0.1).step(net(ONES[:, :1]).square().mean())
    net(ONES[:, :1]).square().mean().backward()
    adapted = net.weight.item()
    outer.step()
    return f"`net.weight` is {adapted} before and {net.weight.item()} after `outer.step()`"


@fault("order")
def order() -> str:
    net = line(2, 1, bias=True)
    leaves = torchopt.pytree.tree_leaves(torchopt.MetaSGD(net, lr=0.1).param_containers_groups[0])
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    return f"{', '.join(names[id(leaf)] for leaf in leaves)}; `named_parameters`: {', '.join(names.values())}"


@fault("frozen")
def frozen() -> str:
    net = line(2, 1, bias=True)
    net.bias.requires_grad_(False)
    return error_of(lambda: torchopt.MetaSGD(net, lr=0.1).step(net(ONES).sum()))


@fault("no_grad")
def no_grad() -> str:
    net = line(2, 1)
    inner, loss = torchopt.MetaAdam(net, lr=0.1), net(ONES).sum()
    with torch.no_grad():
        inner.step(loss)
    return f"`requires_grad` is {net.weight.requires_grad}, then {error_of(lambda: inner.step(net(ONES).sum()))}"


@fault("list of rates")
def list_of_rates() -> str:
    return error_of(lambda: torchopt.MetaSGD(line(2, 1, bias=True), lr=[0.1, 0.2]))


@fault("dampening")
def dampening() -> str:
    net = line()
    inner = torchopt.MetaSGD(net, lr=0.1, momentum=0.9, dampening=0.5)
    start, state = torchopt.extract_state_dict(net, by="reference"), torchopt.extract_state_dict(inner, by="reference")
    ends = []
    for _ in range(2):
        for _ in range(3):
            inner.step(net(ONES[:, :1]).square().sum())
        ends.append(net.weight.item())
        torchopt.recover_state_dict(net, start)
        torchopt.recover_state_dict(inner, state)
    return "{:.3f}, then {:.3f}".format(*ends)


@fault("tied")
def tied() -> str:
    net = nn.Sequential(line(2, 2), line(2, 2))
    net[1].weight = net[0].weight
    nn.init.eye_(net[0].weight)
    with torch.no_grad():
        net[0].weight[0, 1] = 0.5
    inner = torchopt.MetaSGD(net, lr=0.1)
    for _ in range(3):
        inner.step(net(ONES).square().sum())
    return f"apart by {(net[0].weight - net[1].weight).abs().max().item():.2f}"


@fault("eps_root")
def eps_root() -> str:
    finite = []
    for root in (0.0, 1e-8):
        net = nn.Sequential(line(1, 2, bias=True), nn.ReLU(), line(2, 1))
        with torch.no_grad():
            net[0].bias[1] = -5.0  # the second unit is inactive: its derivatives are exactly 0
        start = list(net.parameters())
        torchopt.MetaAdam(net, lr=0.01, eps_root=root).step(net(ONES[:, :1]).square().mean())
        gradients = torch.autograd.grad(net(ONES[:, :1]).square().mean(), start)
        finite.append(all(bool(gradient.isfinite().all()) for gradient in gradients))
    return f"finite: {finite[0]}; with `eps_root=1e-8` {finite[1]}"


@fault("clip_grad_norm")
def clip_grad_norm() -> str:
    def clipped(start: Tensor) -> tuple[Tensor, Tensor]:
        net = line(2, 1)
        net.weight = leaf = nn.Parameter(start.clone())
        chain = torchopt.chain(torchopt.clip.clip_grad_norm(max_norm=0.1), torchopt.sgd(lr=0.5))
        curvature = torch.tensor([1.0, 4.0], dtype=torch.float64)
        torchopt.MetaOptimizer(net, chain).step(0.5 * (curvature * net.weight.square()).sum())
        return (net.weight - 1).square().sum(), leaf

    start, step = torch.tensor([[0.3, -0.2]], dtype=torch.float64), 1e-6
    loss, leaf = clipped(start)
    (gradient,) = torch.autograd.grad(loss, leaf)
    sides = [
        clipped(start + sign * step * torch.eye(2, dtype=torch.float64)[1])[0].item() for sign in (1, -1)
    ]  # along the second coordinate
    return f"{gradient[0, 1].item():.3f}; finite difference {(sides[0] - sides[1]) / (2 * step):.3f}"


@fault("inplace")
def inplace() -> str:
    parameters = (torch.ones(1, requires_grad=True),)
    optimizer = torchopt.sgd(lr=0.1)
    gradients = torch.autograd.grad(parameters[0].square().sum(), parameters, create_graph=True)
    updates, _ = optimizer.update(gradients, optimizer.init(parameters))
    (adapted,) = torchopt.apply_updates(parameters, updates)
    return f"the same tensor, now {parameters[0].item():.1f}; `grad_fn` {adapted.grad_fn}"


@fault("vmap")
def vmap() -> str:
    def adapted(name: str) -> Callable[[Tensor, Tensor], Tensor]:
        def loss(w: Tensor, x: Tensor) -> Tensor:
            optimizer = getattr(torchopt, name)(lr=0.1)
            state = optimizer.init((w,))
            for _ in range(2):
                gradient = torch.func.grad(lambda weights: (weights * x).square().sum())(w)
                updates, state = optimizer.update((gradient,), state, params=(w,), inplace=False)
                (w,) = torchopt.apply_updates((w,), updates, inplace=False)
            return (w * x).sum()

        return loss

    def rows(name: str) -> Tensor:
        return torch.func.vmap(torch.func.grad(adapted(name)), in_dims=(None, 0))(torch.ones(8), torch.ones(3, 8))

    names = ("sgd", "adagrad", "adam", "adamw", "adamax", "radam", "rmsprop", "adadelta")
    failing = [name for name in names if error_of(lambda name=name: rows(name)) == "`RuntimeError`"]
    return f"`RuntimeError` of {', '.join(failing)}"


@fault("other shapes")
def other_shapes() -> str:
    net = nn.Linear(3, 2)
    torchopt.recover_state_dict(net, torchopt.extract_state_dict(nn.Linear(7, 5)))
    return f"`net.weight` has shape {tuple(net.weight.shape)}"


@fault("deepcopy")
def deepcopy() -> str:
    net = line(2, 1)
    inner, start = torchopt.MetaSGD(net, lr=0.1), net.weight
    copy.deepcopy(inner).step(net(ONES).sum())
    unchanged = net.weight is start
    inner.step(net(ONES).sum())
    return f"the copy adapts `net`: {not unchanged}; of the network {error_of(lambda: copy.deepcopy(net))}"


@fault("pickle")
def pickled() -> str:
    return error_of(lambda: pickle.dumps(torchopt.sgd(lr=0.1)))


@fault("graph of the state")
def graph_of_the_state() -> str:
    net, sizes = line(), []
    inner, start = torchopt.MetaAdam(net, lr=0.1), torchopt.extract_state_dict(net, by="reference")
    for _ in range(4):
        inner.step(net(ONES[:, :1]).square().sum())
        sizes.append(nodes(net(ONES[:, :1]).square().sum()))
        torchopt.recover_state_dict(net, start)
    return f"{', '.join(map(str, sizes))} nodes"


@fault("stop_gradient")
def stop_gradient() -> str:
    net = line()
    torchopt.MetaSGD(net, lr=0.1).step(net(ONES[:, :1]).square().sum())
    state = torchopt.extract_state_dict(net, by="reference")
    torchopt.stop_gradient(net)
    torchopt.recover_state_dict(net, state)
    return f"`grad_fn` {net.weight.grad_fn}"


def inverse(a: Tensor, solver: Any) -> Tensor:
    """Return 1/a as the root x of a x − 1, by `custom_root`."""

    @torchopt.diff.implicit.custom_root(lambda x, a: x * a - 1, argnums=1, solve=solver)
    def solve(x: Tensor, a: Tensor) -> Tensor:
        return (1 / a).detach()

    return solve(torch.zeros_like(a), a)  # type: ignore[no-any-return]


@fault("implicit in torch.func")
def implicit_in_torch_func() -> str:
    solver = torchopt.linear_solve.solve_cg(maxiter=5)
    return error_of(lambda: torch.func.grad(lambda a: inverse(a, solver).sum())(torch.tensor([2.0])))


@fault("maxiter")
def maxiter() -> str:
    a = torch.tensor(2.0, requires_grad=True)
    derivatives = [
        torch.autograd.grad(inverse(a, torchopt.linear_solve.solve_cg(**options)), a)[0].item()
        for options in ({}, {"maxiter": 5})
    ]
    return "{}; with `maxiter=5` {}".format(*derivatives)


MATRIX = torch.tensor([[2.0, 1.0], [1.0, 3.0]])


@fault("solve_inv")
def solve_inv() -> str:
    def product(parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return tuple((MATRIX @ torch.cat(parts)).split(1))  # type: ignore[return-value]

    right_side = (torch.tensor([1.0]), torch.tensor([0.0]))
    solution = torchopt.linear_solve.solve_inv(ns=False)(product, right_side)
    exact = torch.linalg.solve(MATRIX, torch.cat(right_side))
    return "({:.1f}, {:.1f}); exact ({:.1f}, {:.1f})".format(*torch.cat(solution).tolist(), *exact.tolist())


@fault("Neumann series")
def neumann_series() -> str:
    solution = torchopt.linear_solve.solve_inv(ns=True)(lambda v: 3 * v, torch.ones(1))
    return f"{solution.item():.0f}; exact {1 / 3:.3f}"


@fault("second derivative of a root")
def second_derivative_of_a_root() -> str:
    derivatives = []
    for solver in (torchopt.linear_solve.solve_cg(maxiter=5), torchopt.linear_solve.solve_inv(ns=False)):
        a = torch.tensor([2.0], requires_grad=True)
        (first,) = torch.autograd.grad(inverse(a, solver).sum(), a, create_graph=True)
        derivatives.append(torch.autograd.grad(first.sum(), a)[0].item())
    assert derivatives[0] == derivatives[1]
    return f"{derivatives[0]:.3f}; exact {2 / 2**3:.3f}"


@fault("zero_order")
def zero_order() -> str:
    coefficients = torch.tensor([2.0, -4.0, 1.0], dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros(()).double(), torch.ones(()).double())
    estimate = torchopt.diff.zero_order.zero_order(
        distribution=normal, method="forward", argnums=0, num_samples=20000, sigma=0.1
    )(lambda w: (w * coefficients).sum())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        w = torch.ones(3, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(estimate(w), w)
    return f"norm {gradient.norm().item():.1f}; exact {coefficients.norm().item():.1f}"


@fault("attention")
def attention() -> str:
    def adapted() -> None:
        net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        start, x = list(net.parameters()), torch.ones(2, 3, 8)
        torchopt.MetaSGD(net, lr=0.1).step(net(x).square().mean())
        torch.autograd.grad(net(x).square().mean(), start)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        plain = error_of(adapted)
    return f"{error_of(adapted)}; with `sdpa_kernel(SDPBackend.MATH)` {plain}"


@fault("accelerated Adam")
def accelerated_adam() -> str:
    parameter = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = torchopt.adam(lr=0.1, use_accelerated_op=True)
    gradients = torch.autograd.grad((parameter**3).sum(), (parameter,), create_graph=True)
    updates, _ = optimizer.update(gradients, optimizer.init((parameter,)), inplace=False)
    (adapted,) = torchopt.apply_updates((parameter,), updates, inplace=False)
    (meta,) = torch.autograd.grad(adapted.square().sum(), parameter, create_graph=True)
    return error_of(lambda: torch.autograd.grad(meta.square().sum(), parameter))


def main() -> None:
    warnings.simplefilter("ignore")  # TorchOpt calls deprecated functions of PyTorch
    torch.manual_seed(0)
    print(f"TorchOpt {torchopt.__version__}, PyTorch {torch.__version__}")
    for name, function in FAULTS.items():
        print(f"{name}: {function()}")


if __name__ == "__main__":
    main()
