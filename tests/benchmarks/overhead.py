"""Benchmark of one step of a large network with several losses, on a GPU where there is one: every homogenizer."""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import gradhomog
from gradhomog.experiments.profiling.harness import Comparison
from gradhomog.experiments.run_file import content
from tests.benchmarks.backward import BY_HAND, IMAGES, SUMMED, Setting, Step, by_hand, homogenized, summed
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.columns import ComparisonWithColumns

SHAPES = tuple((tasks, *sizes) for sizes in ((3, 84, 64), (84,), (8, 1024)) for tasks in (4, 16))
SEQUENCES, TOKENS = 8, 128
"""Batch size, and the length of a sequence."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Transformer(nn.Module):
    """Encoder layers without dropout; features are the means over the tokens."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(tokens).mean(1)


def transformer(tasks: int, layers: int, width: int) -> Setting:
    inputs = (SEQUENCES, TOKENS, width)
    title = f"transformer, {layers} layers of width {width}, {tasks} heads, {SEQUENCES} times {TOKENS} tokens"
    return Setting(title, tasks, lambda: (Transformer(layers, width), width), inputs, device=DEVICE)


def resnet10(tasks: int, pixels: int) -> Setting:
    return _images("resnet10", tasks, (3, pixels, pixels), 64)


def conv4(tasks: int, channels: int, pixels: int, filters: int) -> Setting:
    return _images("conv4", tasks, (channels, pixels, pixels), filters)


def _images(name: str, tasks: int, image: tuple[int, ...], width: int) -> Setting:
    def encoder() -> tuple[nn.Module, int]:
        body, head = content.build_network(name, image, 1, width)
        return body, head.in_features

    title = f"{name}, {width} filters, {tasks} heads, {IMAGES} images {image}"
    return Setting(title, tasks, encoder, (IMAGES, *image), device=DEVICE)


def acts_on_rows(name: str) -> bool:
    """False for homogenizers that act in the network, or that read more than losses and rows."""
    pipe = gradhomog.pipeline(name)
    needs = {need for member in pipe.members for need in member.needs}
    return not needs & {"features", "kernel_traces", "targets"} and not pipe.requirements.attaching


def compare(texts: Sequence[str], setting: Setting) -> Comparison:
    network = setting.network()  # of all steps; its parameters do not change
    steps = {SUMMED: summed, BY_HAND: by_hand}
    for text in texts or ["none", *filter(acts_on_rows, gradhomog.available())]:
        steps[text] = homogenized(gradhomog.pipeline(text))
    millions = sum(parameter.numel() for parameter in network.encoder.parameters()) / 1e6
    device = torch.cuda.get_device_name(DEVICE) if DEVICE.type == "cuda" else "CPU"
    return ComparisonWithColumns(
        f"one step: {setting.title}, {millions:.3g} million shared parameters, {device}",
        {label: Step(backward, network) for label, backward in steps.items()}, setting.batch, SUMMED,
        (
            "A step: forward, the losses of linear heads, gradients into .grad; no optimizer. float32.",
            f"PyTorch {torch.__version__}. Times include the end of all work on the device.",
        ),
        others=(BY_HAND,), device=DEVICE, with_memory=False,
    )  # fmt: skip


FORMS = {
    "tasks x pixels (resnet10)": resnet10,
    "tasks x layers x width (transformer)": transformer,
    "tasks x channels x pixels x filters (conv4)": conv4,
}
BENCHMARK = Benchmark("overhead", FORMS, SHAPES, compare)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(__doc__))
