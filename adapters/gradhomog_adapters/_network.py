"""Encoder and head as functions of named parameters; modules with named parameters; networks that are supported."""

import fnmatch
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from gradhomog import OptionError
from gradhomog_adapters._gradients import graph_nodes

Parameters = Mapping[str, Tensor]
"""Tensors named `encoder.*`, `head.*` and, for some learners, `learner.*`; networks ignore other names."""


class Network:
    """Calls encoder and head with given parameters and buffers; never modifies the modules.

    A parameter with several names (tied weights) is listed under the first name and used for all.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        self._both = nn.Sequential(OrderedDict(encoder=encoder, head=head))
        self._without_checkpoint: set[str] = set()
        canonical: dict[int, str] = {}
        for name, parameter in self._both.named_parameters(remove_duplicate=False):
            canonical.setdefault(id(parameter), name)
        self._submodels = {
            prefix: _Submodel(prefix, module, canonical)
            for prefix, module in (("", self._both), ("encoder.", encoder), ("head.", head))
        }

    def parameters(self) -> dict[str, Tensor]:
        """The parameters that require grad, each once."""
        return {name: p for name, p in self._both.named_parameters() if p.requires_grad}

    def modules(self) -> dict[str, nn.Module]:
        """All submodules, under each of their names."""
        return dict(self._both.named_modules(remove_duplicate=False))

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers, so that tasks do not share running statistics."""
        copies: dict[int, Tensor] = {}
        found: dict[str, Tensor] = {}
        for name, buffer in self._both.named_buffers(remove_duplicate=False):
            found[name] = copies.setdefault(id(buffer), buffer.clone())
        return found

    def call(self, prefix: str, parameters: Parameters, buffers: Parameters, x: Tensor) -> Tensor:
        """Return the output of the module with a prefix: `"encoder."`, `"head."`, or `""` for both."""
        selected = self._submodels[prefix]
        # Frozen parameters are not among the given ones.
        tensors = {local: parameters[name] for local, name in selected.parameters if name in parameters}
        for name in buffers:
            if name.rpartition(".")[0] in selected.module_names:
                tensors[name.removeprefix(prefix)] = buffers[name]
        if torch.compiler.is_compiling():  # only within torch.func, whose transforms reject checkpoints themselves
            compiled: Tensor = functional_call(selected.module, tensors, (x,), tie_weights=False)
            return compiled
        replaced = any(not isinstance(tensor, nn.Parameter) for tensor in tensors.values())
        trained = any(tensor.requires_grad for tensor in tensors.values())
        first = trained and torch.is_grad_enabled() and prefix not in self._without_checkpoint
        # A checkpoint would recompute with the module's own tensors: correct only if none is replaced.
        checkpoints = torch.autograd.graph.disable_saved_tensors_hooks(NO_CHECKPOINTS) if replaced else nullcontext()
        try:
            with checkpoints, reject_reentrant_checkpoints_of_data() if first else nullcontext():
                result: Tensor = functional_call(selected.module, tensors, (x,), tie_weights=False)
        except RuntimeError as error:
            raise_for_checkpoint(error)
            raise
        if first:
            reject_reentrant_checkpoints(result, [x, *tensors.values()])
            self._without_checkpoint.add(prefix)
        return result


class _Submodel:
    """The encoder, the head, or both, as one callable.

    Attributes:
        module: the module that is called.
        parameters: its parameters, as pairs of local and canonical name.
        module_names: the names of its submodules.

    A module with two names is listed once, because `functional_call` must replace each tensor once.
    """

    def __init__(self, prefix: str, module: nn.Module, canonical: Mapping[int, str]) -> None:
        self.module = module
        self.parameters = [
            (local, canonical[id(parameter)])
            for path, part in module.named_modules()
            for local, parameter in part.named_parameters(path, recurse=False, remove_duplicate=False)
        ]
        self.module_names = {(prefix + path).rstrip(".") for path, _ in module.named_modules()}


def linear_layers(head: nn.Module, message: str) -> list[nn.Linear]:
    """Return the linear layers of a head, in order.

    Raises:
        OptionError: with the message; there are none.
    """
    found = [part for part in head.modules() if isinstance(part, nn.Linear)]
    if not found:
        raise OptionError(message)
    return found


def match_names(names: Sequence[str], patterns: str | Sequence[str], option: str) -> list[str]:
    """Names that match at least one of the glob patterns, in order.

    Raises:
        OptionError: there is no pattern, or a pattern matches no name.
    """
    chosen: set[str] = set()
    if not patterns:
        raise OptionError(f"`{option}` must contain at least one pattern; got {patterns!r}.")
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise OptionError(
                f"`{option}` must match the name of a parameter; {pattern!r} matches none of {', '.join(names)}."
            )
        chosen.update(matches)
    return [name for name in names if name in chosen]


def parameter_module(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Module whose parameters have the given names, which may contain dots, and copies of the given values.

    `nn.ParameterDict` does not allow dots, and users select parameters by these names.
    """
    return _tree({name: nn.Parameter(tensor.detach().clone()) for name, tensor in tensors.items()})


def buffer_module(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Module whose buffers have the given names and values: saved with the module, not trained."""
    return _tree({name: nn.Buffer(tensor) for name, tensor in tensors.items()})


class StepModule(nn.Module):
    """A module of a learner whose state changes at the end of each meta-step."""

    def on_step_end(self) -> None:
        """Change the state; called by `FewShotLearner.on_step_end`."""


class StepCounter(StepModule):
    """A module whose state is `step`, the number of completed meta-steps: for schedules, phases and random draws."""

    step = 0

    def on_step_end(self) -> None:
        self.step += 1

    # A Python number, because reading a buffer synchronizes with the device.
    def get_extra_state(self) -> dict[str, int]:
        return {"step": self.step}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        self.step = state["step"]


def _tree(tensors: Mapping[str, Tensor]) -> nn.Module:
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        place = root
        for part in path:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        setattr(place, last, tensor)
    return root


# -- networks that are not supported ----------------------------------------------------------------------------------


UNSUPPORTED: Sequence[tuple[Callable[[nn.Module], bool], str]] = (
    (
        lambda part: any(isinstance(p, UninitializedParameter) for p in part.parameters(recurse=False)),
        "has uninitialized parameters. Run the network once on an example first.",
    ),
    (
        lambda part: isinstance(part, torch.jit.ScriptModule),
        "is compiled by TorchScript, with fixed parameters. Pass the original module.",
    ),
    (
        lambda part: isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel),
        "copies the network. Pass the module that it wraps.",
    ),
    (
        lambda part: isinstance(part, torch._dynamo.OptimizedModule) or part._compiled_call_impl is not None,
        "is compiled, but the inner loop needs second derivatives, which compiled code lacks. Pass the original "
        "module, and for a small network pass compile=True to the learner.",
    ),
    (
        lambda part: any(isinstance(h, WeightNorm | SpectralNorm) for h in part._forward_pre_hooks.values()),
        "is normalized by a hook that replaces its weight. Use weight_norm or spectral_norm of "
        "torch.nn.utils.parametrizations.",
    ),
)
"""Modules that a learner cannot call with other parameters, and what to do."""


def check_supported(encoder: nn.Module, head: nn.Module) -> None:
    """Raise an OptionError for a module that a learner cannot call with other parameters.

    A functional call would not see the parameters that it passes, or would lose derivatives, in silence.
    """
    for path, part in nn.ModuleDict({"encoder": encoder, "head": head}).named_modules():
        for is_unsupported, message in UNSUPPORTED:
            if path and is_unsupported(part):
                raise OptionError(f"`{path}`, a {type(part).__name__}, {message}")


NO_CHECKPOINTS = (
    "a learner calls its network with other tensors in place of parameters (adapted ones, or those of all tasks with "
    "engine='vmap') and of buffers, but an activation checkpoint (torch.utils.checkpoint), or another hook on saved "
    "tensors, would run the forward pass again with those of the module, and the gradient would be wrong. Remove the "
    "checkpoint; recompute=True saves the memory of inner steps. Learners that do not adapt the encoder accept "
    "checkpoints with engine='loop' in networks without buffers."
)

_REENTRANT = (
    "a network of a learner must not contain reentrant checkpoints (torch.utils.checkpoint with use_reentrant=True), "
    "whose parameters are not part of the autograd graph and would get no gradient. Remove the checkpoint."
)


def raise_for_checkpoint(error: Exception) -> None:
    """Raise OptionError for the error of a checkpoint with `use_reentrant=False`, or of hooks on saved tensors."""
    if any(text in str(error) for text in (NO_CHECKPOINTS, "support saved tensor hooks")):  # the latter of torch.func
        raise OptionError(NO_CHECKPOINTS) from error


@contextmanager
def reject_reentrant_checkpoints_of_data() -> Iterator[None]:
    """Raise OptionError for checkpoints with `use_reentrant=True` whose inputs do not require grad.

    They leave no node in the graph, but PyTorch warns. Not thread-safe, as all filters of warnings.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="None of the inputs have requires_grad=True")
        try:
            yield
        except UserWarning as warning:
            raise OptionError(_REENTRANT) from warning


def reject_reentrant_checkpoints(output: Tensor, inputs: Iterable[Tensor]) -> None:
    """Raise for checkpoints with `use_reentrant=True` between inputs and output: their parameters get no gradient.

    Raises:
        OptionError.
    """
    nodes = graph_nodes(output.grad_fn, [tensor.grad_fn for tensor in inputs])
    if any(node.name() == "CheckpointFunctionBackward" for node in nodes):
        raise OptionError(_REENTRANT)
