"""Benchmark of one meta-step of MAML: learners, a hand-written loop, TorchOpt's MetaSGD, and `higher`."""

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import higher
import torch
import torchopt
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from gradhomog import OptionError
from gradhomog.experiments.profiling.harness import Comparison
from gradhomog.experiments.run_file import content
from gradhomog.learners.learner import Learner
from gradhomog.learners.scoring import default_loss
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.registry import expression, installed, options
from tests.benchmarks.backward import cosine_to
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.columns import ComparisonWithColumns

SHAPES = ((25, 40), (4, 1, 28, 64))
"""25 sinusoids with the network of Finn et al. 2017, and conv4 on 28 px. At 84 px a step takes up to a minute."""

WAYS, SHOTS, QUERIES = 5, 5, 15
POINTS = 10
"""Number of points of a sinusoid, in the support set and in the query set each."""
STEPS, RATE = 5, 0.01
"""Number of inner steps, and their learning rate."""

EVERYWHERE = ("maml", "maml(recompute=true)", "maml(first_order=true)")
FOR_SINUSOIDS = ('maml(engine="loop")', "maml(compile=true)")
FOR_IMAGES = ('maml(autocast="bfloat16")',)
VECTORIZED = 'maml(engine="vmap")'
LARGEST_AT_ONCE = 4 * 28 * 28 * 64
"""Maximum of tasks · pixels · filters for workloads that keep the graphs of all tasks: summed losses and `VECTORIZED`,
which took 14 GB for 4 tasks at 84 px with 32 filters."""
CHANNELS_LAST = "maml, channels last"

# -- inputs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Tasks, and the network that is adapted to them; drawn in float32, so that all dtypes have the same numbers.

    Attributes:
        modules: creates the encoder and the head.
        draw: draws the support set and the query set: inputs and targets.
        size: tasks · pixels · filters; 0 for networks without images.
    """

    title: str
    modules: Callable[[], tuple[nn.Module, nn.Module]]
    draw: Callable[[torch.Generator], list[Tensor]]
    size: int = 0
    dtype: torch.dtype = torch.float32

    def network(self) -> nn.Sequential:
        """Encoder and head, with the same parameters in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            encoder, head = self.modules()
        return nn.Sequential(OrderedDict(encoder=encoder, head=head)).to(self.dtype).train()

    def batch(self, number: int) -> TaskBatch:
        """The tasks of a round."""
        drawn = self.draw(torch.Generator().manual_seed(number))
        return TaskBatch(*(part.to(self.dtype) if part.is_floating_point() else part for part in drawn))


def images(tasks: int, channels: int, pixels: int, filters: int) -> Setting:
    """Few-shot images: a pattern per class plus noise of the same scale (time does not depend on the pixels)."""
    image = (channels, pixels, pixels)

    def draw(random: torch.Generator) -> list[Tensor]:
        classes = torch.randn(tasks, WAYS, 1, *image, generator=random)
        found = []
        for each in (SHOTS, QUERIES):
            noisy = classes + torch.randn(tasks, WAYS, each, *image, generator=random)
            targets = torch.arange(WAYS).repeat_interleave(each).expand(tasks, -1).contiguous()
            found += [noisy.flatten(1, 2), targets]
        return found

    title = (
        f"conv4, {filters} filters, inputs {image}, {tasks} tasks with {WAYS} ways, {SHOTS} shots, {QUERIES} queries"
    )
    return Setting(
        title, lambda: content.build_network("conv4", image, WAYS, filters), draw, tasks * pixels**2 * filters
    )


def sinusoids(tasks: int, width: int) -> Setting:
    """Regression as in Finn et al. 2017: 10 points, amplitude 0.1 to 5."""

    def draw(random: torch.Generator) -> list[Tensor]:
        amplitudes = 0.1 + 4.9 * torch.rand(tasks, 1, 1, generator=random)
        phases = torch.pi * torch.rand(tasks, 1, 1, generator=random)
        found = []
        for _ in ("support", "query"):
            x = 10 * torch.rand(tasks, POINTS, 1, generator=random) - 5
            found += [x, amplitudes * torch.sin(x - phases)]
        return found

    title = f"mlp, two layers of {width}, {tasks} sinusoids with {POINTS} points"
    return Setting(title, lambda: content.build_network("mlp", (1,), 1, width), draw)


def to_channels_last(batch: TaskBatch) -> TaskBatch:
    """The same images in the memory format `torch.channels_last`."""

    def convert(x: Tensor) -> Tensor:
        return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape)

    return TaskBatch(convert(batch.support_x), batch.support_y, convert(batch.query_x), batch.query_y)


# -- implementations -----------------------------------------------------------------------------------------------

Accumulate = Callable[[nn.Module, TaskBatch], None]
"""Adds the gradient of the tasks' mean query loss to `.grad` of a network's parameters."""


class MetaStep:
    """One meta-step of a peer or a learner: the gradient, then Adam.

    The learning rate is 0, so that parameters are constant; the cost of Adam does not depend on it.
    """

    def __init__(
        self, network: nn.Module, take: Callable[[TaskBatch, Optimizer], object], parameters: Iterable[Tensor]
    ) -> None:
        self.network, self.take = network, take
        self.outer = torch.optim.Adam(parameters, lr=0.0)

    def __call__(self, batch: TaskBatch) -> None:
        self.take(batch, self.outer)


def by_hand(network: nn.Module, batch: TaskBatch, *, first_order: bool = False) -> None:
    """A loop over tasks that frees the graph of each task; the reference."""
    parameters = dict(network.named_parameters())
    for task in batch:
        adapted = _adapt(network, parameters, task, first_order)
        loss = _query_loss(network, adapted, task)
        gradients = torch.autograd.grad(loss, [*(adapted if first_order else parameters).values()])
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            share = gradient / len(batch)
            parameter.grad = share if parameter.grad is None else parameter.grad.add_(share)


def summed(network: nn.Module, batch: TaskBatch) -> None:
    """As in tutorials: one `backward` of the mean query loss, which keeps the graphs of all tasks in memory."""
    parameters = dict(network.named_parameters())
    losses = [_query_loss(network, _adapt(network, parameters, task, False), task) for task in batch]
    torch.stack(losses).mean().backward()


def _adapt(network: nn.Module, start: dict[str, nn.Parameter], task: Task, first_order: bool) -> dict[str, Tensor]:
    adapted: dict[str, Tensor] = dict(start)
    for _ in range(STEPS):
        loss = default_loss(functional_call(network, adapted, (task.support_x,)), task.support_y)
        gradients = torch.autograd.grad(loss, [*adapted.values()], create_graph=not first_order)
        adapted = {name: p - RATE * gradient for (name, p), gradient in zip(adapted.items(), gradients, strict=True)}
        if first_order:
            adapted = {name: p.detach().requires_grad_() for name, p in adapted.items()}
    return adapted


def _query_loss(network: nn.Module, parameters: dict[str, Tensor], task: Task) -> Tensor:
    return default_loss(functional_call(network, parameters, (task.query_x,)), task.query_y)


def with_meta_sgd(network: nn.Module, batch: TaskBatch) -> None:
    """As in TorchOpt's tutorial, with `detach_buffers`: otherwise tasks share the buffers of batch normalization."""
    inner = torchopt.MetaSGD(network, lr=RATE)
    start = torchopt.extract_state_dict(network, by="reference", detach_buffers=True)
    fresh = torchopt.extract_state_dict(inner, by="reference")
    for task in batch:
        for _ in range(STEPS):
            inner.step(default_loss(network(task.support_x), task.support_y))
        (default_loss(network(task.query_x), task.query_y) / len(batch)).backward()
        torchopt.recover_state_dict(network, start)
        torchopt.recover_state_dict(inner, fresh)


def with_higher(network: nn.Module, batch: TaskBatch) -> None:
    """As in the examples of `higher`."""
    inner = torch.optim.SGD(network.parameters(), lr=RATE)
    for task in batch:
        with higher.innerloop_ctx(network, inner, copy_initial_weights=False) as (adapted, descent):
            for _ in range(STEPS):
                descent.step(default_loss(adapted(task.support_x), task.support_y))
            (default_loss(adapted(task.query_x), task.query_y) / len(batch)).backward()


BY_HAND, META_SGD, HIGHER = "hand-written loop", "TorchOpt MetaSGD", "higher"
AT_ONCE, FIRST_ORDER = "hand-written, losses summed", "hand-written, first order"
PEERS: dict[str, Accumulate] = {
    BY_HAND: by_hand, AT_ONCE: summed, META_SGD: with_meta_sgd, HIGHER: with_higher,
    FIRST_ORDER: partial(by_hand, first_order=True),
}  # fmt: skip


def peer(accumulate: Accumulate, network: nn.Module) -> MetaStep:
    def take(batch: TaskBatch, outer: Optimizer) -> None:
        outer.zero_grad()
        accumulate(network, batch)
        outer.step()

    return MetaStep(network, take, network.parameters())


def learner(text: str, network: nn.Sequential) -> Learner:
    """A learner with the pipeline `none`, and with the inner steps of the peers if it has such options."""
    selector, own = expression.parse_one(text)
    _, spec = installed().load("learners", selector)
    common = {"inner_steps": STEPS, "inner_lr": RATE}
    accepted = {name: value for name, value in common.items() if name in options.option_parameters(spec)}
    return installed().make("learners", selector, {**accepted, **own}, *network)[2]


def channels_last(network: nn.Sequential) -> MetaStep:
    """`maml` with network and images in the memory format `torch.channels_last`."""
    made = learner("maml", network.to(memory_format=torch.channels_last))
    return MetaStep(network, lambda batch, outer: made.step(to_channels_last(batch), outer), made.parameters())


def steps(texts: Sequence[str], setting: Setting) -> tuple[dict[str, MetaStep], list[str]]:
    """The steps by label, and notes about omitted steps."""
    at_once = setting.size <= LARGEST_AT_ONCE
    peers = {label: accumulate for label, accumulate in PEERS.items() if at_once or label != AT_ONCE}
    steps = {label: peer(accumulate, setting.network()) for label, accumulate in peers.items()}
    large = "Workloads that keep the graphs of all tasks are omitted: for these images they need gigabytes."
    notes = [] if at_once else [large]
    defaults = [*EVERYWHERE, *(FOR_IMAGES if setting.size else FOR_SINUSOIDS), *([VECTORIZED] if at_once else [])]
    for text in texts or defaults:
        made = learner(text, network := setting.network())
        step = MetaStep(network, made.step, made.parameters())
        try:
            if "compile" in text:
                step(setting.batch(0))  # compiles it before it is timed
            steps[text] = step
        except OptionError as error:  # usually no C++ compiler is found
            notes.append(f"{text} is omitted: {str(error).strip().splitlines()[0]}")
    if setting.size and not texts:
        steps[CHANNELS_LAST] = channels_last(setting.network())
    return steps, notes


def exact_gradient(setting: Setting) -> nn.Module:
    """The network after the hand-written loop in float64, on the first batch."""
    double = dataclasses.replace(setting, dtype=torch.float64)
    network = double.network()
    by_hand(network, double.batch(0))
    return network


def compare(texts: Sequence[str], setting: Setting) -> Comparison:
    made, notes = steps(texts, setting)
    networks = {label: step.network for label, step in made.items()}
    return ComparisonWithColumns(
        f"one meta-step of MAML, {STEPS} inner steps: {setting.title}",
        made, setting.batch, BY_HAND,
        (
            "A meta-step: the gradient of the mean query loss, of second order unless the label differs, and Adam.",
            "cosine: between its gradient and that of the hand-written loop in float64, on the first batch.",
            *notes,
        ),
        min_rounds=1, others=(META_SGD, HIGHER), columns=cosine_to(partial(exact_gradient, setting), networks),
    )  # fmt: skip


FORMS = {"tasks x channels x pixels x filters (conv4)": images, "tasks x hidden units (sinusoids)": sinusoids}
BENCHMARK = Benchmark("maml", FORMS, SHAPES, compare, kind="learner")

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(__doc__))
