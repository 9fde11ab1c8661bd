"""Options: read from the factory's annotations, validated by gradhomog, described in errors."""

import copy
import dataclasses
import inspect
import math
import pickle
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Annotated, Any, Literal, TypedDict, Unpack, cast

import numpy as np
import pytest
import torch
from annotated_types import Ge

import gradhomog
from gradhomog import Homogenizer, HomogenizerSpec, OptionError, Registry, StageResult
from gradhomog.registry import installed, options
from gradhomog.registry.options import fits, validated
from gradhomog.testing.pytest_plugin import InstallDistribution
from tests.registry.annotated_options import AnnotatedOptions
from tests.registry.scaled import Scaled
from tests.registry.sources import FINE

REGISTRY = Registry(
    [EntryPoint(name, f"tests.registry.{name}", "gradhomog.homogenizers") for name in ("annotated_options", "scaled")]
)


def make(option: str, value: object) -> Any:
    [made] = gradhomog.pipeline([("annotated_options", {"needed": 0, option: value})], registry=REGISTRY)
    return made


ACCEPTED: dict[str, list[object]] = {
    "count": [3, np.int64(3)],
    "rate": [0.25, 2, 10**20],
    "flag": [True],
    "label": [""],
    "mode": ["slow"],
    "many": [[1, 2.5], []],
    "bare": [["x", 1]],
    "pair": [[2, "b"]],
    "table": [{"a": 1}],
    "plain": [{"a": [1]}],
    "maybe": [None, 2],
    "weights": ["random", None, [1, 2.0], [10**20], range(3)],
    "anything": [{"a": [True]}],
    "at_least": [0],
    "positive": [1e-300],
    "share": [0.0],
    "limit": [None],
    "unbounded": [math.inf],
    "each": [[0, 0.5], []],
    "by_name": [{"a": -1e300, "b": 1}],
    "names": [["a", "b"]],
}


@pytest.mark.parametrize("option", ACCEPTED)
def test_accepted_values_reach_the_factory(option: str) -> None:
    for value in ACCEPTED[option]:
        assert make(option, value).options[option] == value


INVALID: list[tuple[str, str, list[object]]] = [
    ("count", "an integer", [1.5, True, "3"]),
    ("count", "an integer of at most 64 bits", [2**63]),
    ("rate", "a number", ["0.5", False, None, math.inf, math.nan]),
    ("rate", "a number within float64", [2**1024]),
    ("flag", "true or false", [1, "true"]),
    ("label", "a text", [1]),
    ("mode", 'one of "fast", "slow"', ["medium", None]),
    ("many", "a list (a number each)", [1.0, [1, "2"], {"a": 1.0}]),
    ("many", "a list (a number each) within float64", [[1.0, -(2**1024)]]),
    ("bare", "a list", [3]),
    ("pair", "a list of 2 (an integer, a text)", [[1], ["a", 1]]),
    ("table", "a table by name (a number each)", [[1], {"a": "x"}, {1: 0.5}]),
    ("table", "a table by name (a number each) within float64", [{"a": 2**1024}]),
    ("plain", "a table by name", [3]),
    ("maybe", "an integer or none", [0.5]),
    ("weights", 'a list (a number each) or "random" or none', ["rnd"]),
    ("at_least", "a number ≥ 0", [-1, math.inf, "0"]),
    ("positive", "a number > 0", [0, math.nan]),
    ("share", "a number ≥ 0 and < 1", [1]),
    ("limit", "an integer ≥ 1 or none", [0]),
    ("unbounded", "a number ≥ 0 and ≤ inf", [-0.5, math.nan]),
    ("each", "a list (a number ≥ 0 each)", [[1, -1]]),
    ("by_name", "a table by name (a number ≤ 1 each)", [{"a": 2}]),
    ("names", "a list (a text each) with length ≥ 1 and with length ≤ 2", [[], ["a", "b", "c"]]),
]


@pytest.mark.parametrize(("option", "words", "values"), INVALID)
def test_an_invalid_value_raises_with_the_accepted_values(option: str, words: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(OptionError) as raised:
            make(option, value)
        assert str(raised.value) == f"annotated_options: `{option}` must be {words}; got {value!r}."


def test_an_unknown_option_raises_with_a_similar_option_and_all_options() -> None:
    with pytest.raises(OptionError) as raised:
        gradhomog.pipeline("pcgrad(sed=1)")
    message = str(raised.value)
    assert message.startswith("pcgrad has no option 'sed'. Did you mean 'seed'? Its options: ")
    for option in ('order="random"', "seed=0 (an integer)", 'scale="mean"'):
        assert option in message


def test_a_missing_required_option_is_named() -> None:
    with pytest.raises(OptionError, match=r"requires the option 'needed'. Its options: needed \(an integer\), count=1"):
        gradhomog.pipeline("annotated_options", registry=REGISTRY)


def test_options_are_described_with_defaults_and_ranges() -> None:
    described = options.describe(REGISTRY.load("homogenizers", "annotated_options")[1])
    for line in (
        "needed (an integer)",
        'mode="fast" (one of "fast", "slow")',
        "maybe=none (an integer or none)",
        "at_least=0.0 (a number ≥ 0)",
        "share=0.5 (a number ≥ 0 and < 1)",
        "limit=none (an integer ≥ 1 or none)",
        "anything=none (any)",
    ):
        assert line in described
    assert len(described) == len(inspect.signature(AnnotatedOptions).parameters)


@dataclasses.dataclass(frozen=True)
class Settings(gradhomog.ValidatedConstructor):
    engine: Literal["loop", "vmap"] = "loop"
    steps: Annotated[int, Ge(1)] | None = None


class MoreOptions(TypedDict, total=False):
    depth: Annotated[int, Ge(1)]


class MoreSettings(gradhomog.ValidatedConstructor):
    def __init__(self, depth: Annotated[int, Ge(1)] = 3) -> None:
        self.depth = depth


class PassesOn(MoreSettings):
    def __init__(self, width: int = 2, **options: Unpack[MoreOptions]) -> None:
        super().__init__(**options)


def test_keywords_of_an_unpacked_typed_dict_are_options_with_the_defaults_of_the_base_class() -> None:
    spec = HomogenizerSpec(factory=cast(Any, PassesOn), summary="", reference="")
    assert options.describe(spec) == ["width=2 (an integer)", "depth=3 (an integer ≥ 1)"]
    assert PassesOn(depth=4).depth == 4
    with pytest.raises(OptionError, match="PassesOn: `depth` must be an integer ≥ 1; got 0"):
        PassesOn(depth=0)
    with pytest.raises(TypeError, match=r"PassesOn\(\) got an unexpected keyword argument 'deep'"):
        PassesOn(deep=1)  # type: ignore[call-arg]


@validated
def scaled_sum(values: Sequence[float], factor: Annotated[float, Ge(0)] = 1.0, **further: Any) -> float:
    """Return the sum times a factor."""
    return factor * sum(values)


def test_frozen_dataclasses_and_functions_validate_their_arguments() -> None:
    assert dataclasses.replace(Settings("vmap"), steps=3) == Settings("vmap", 3)
    assert scaled_sum(range(4), factor=2, unknown="x") == 12
    assert scaled_sum.__doc__ == "Return the sum times a factor."
    invalid: Any = "fast"
    for call, message in (
        (lambda: Settings(invalid), 'Settings: `engine` must be one of "loop", "vmap"; got \'fast\'.'),
        (lambda: Settings(steps=0), "Settings: `steps` must be an integer ≥ 1 or none; got 0."),
        (lambda: scaled_sum([1], -1), "scaled_sum: `factor` must be a number ≥ 0; got -1."),
        (lambda: scaled_sum(invalid), "scaled_sum: `values` must be a list (a number each); got 'fast'."),
    ):
        with pytest.raises(OptionError) as raised:
            call()
        assert str(raised.value) == message


CLASSES = [
    (kind, name)
    for kind in ("homogenizers", "learners")
    for name in gradhomog.available(kind)
    if name != "rotogbml"  # a function that returns names and options of others
]


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_every_plugin_that_is_constructed_directly_validates_its_options(kind: Any, name: str) -> None:
    spec, invalid = installed().load(kind, name)[1], {"an": object()}
    for option, parameter in options.option_parameters(spec).items():
        if option != "scale" and not fits(invalid, parameter.annotation):
            with pytest.raises(OptionError, match=f"`{option}` must be"):
                spec.factory(**{option: invalid})


def test_a_copy_of_an_object_and_a_class_without_options_are_constructed_as_before() -> None:
    assert copy.deepcopy(Scaled(3)).factor == pickle.loads(pickle.dumps(Scaled(3))).factor == 3
    with pytest.raises(TypeError, match="unexpected keyword argument 'factor'"):
        type("Plain", (Homogenizer,), {})(factor=1)


# -- the paper's scale -----------------------------------------------------------------------------------------------


def test_scale_is_an_option_of_the_host_where_the_papers_scale_differs() -> None:
    rows = torch.eye(3)
    plain = gradhomog.pipeline("scaled(factor=5)", registry=REGISTRY).combine(rows)
    torch.testing.assert_close(plain, rows.mean(0))
    for entry in ("scaled(factor=5, scale='paper')", [("scaled", {"factor": 5, "scale": "paper"})]):
        pipe = gradhomog.pipeline(entry, registry=REGISTRY)
        torch.testing.assert_close(pipe.combine(rows), 5 * 3 * plain)
        again = gradhomog.pipeline(str(pipe), registry=REGISTRY)
        torch.testing.assert_close(again.combine(rows), 5 * 3 * plain)
    described = options.describe(REGISTRY.load("homogenizers", "scaled")[1])
    assert described == ["factor=2.0 (a number ≥ 1)", 'scale="mean" (one of "mean", "paper")']


def test_an_unknown_scale_raises_and_so_does_the_option_without_a_paper_scale() -> None:
    with pytest.raises(OptionError, match=r"^scaled: `scale` must be one of \"mean\", \"paper\"; got 'sum'\.$"):
        gradhomog.pipeline("scaled(scale='sum')", registry=REGISTRY)
    with pytest.raises(OptionError, match="annotated_options has no option 'scale'"):
        gradhomog.pipeline("annotated_options(needed=1, scale='paper')", registry=REGISTRY)


def test_rows_are_scaled_like_mixings_and_the_factor_is_differentiable() -> None:
    class Rows(Homogenizer):
        def rows(self, step: gradhomog.Step) -> StageResult:
            return StageResult(step.jacobian, aux=step.jacobian.norms().sum())

        def paper_scale(self, step: gradhomog.Step) -> Any:
            return step.aux

    from gradhomog.step.member import Member
    from gradhomog.step.pipelines import Pipeline

    spec = HomogenizerSpec(factory=Rows, summary="", traits={"differentiable"})
    pipe = Pipeline([Member(Rows(), "rows", {"scale": "paper"}, None, spec)])
    rows = torch.tensor([[3.0, 4.0], [0.0, 5.0]], dtype=torch.float64, requires_grad=True)
    direction = pipe.combine(rows, create_graph=True)
    torch.testing.assert_close(direction, 10 * rows.mean(0))
    (gradient,) = torch.autograd.grad(cast(torch.Tensor, direction).sum(), rows)
    unit = rows.detach() / 5
    torch.testing.assert_close(gradient, 5.0 + unit * float(rows.detach().mean(0).sum()))


def test_arguments_that_the_host_supplies_are_not_options() -> None:
    with pytest.raises(OptionError, match="maml has no option 'encoder'"):
        Registry().make("learners", "maml", {"encoder": None})


def test_options_of_a_partial_factory_are_validated(gradhomog_install: InstallDistribution) -> None:
    source = "import functools\n" + FINE.replace("factory=Fine", "factory=functools.partial(Fine, strength=2.0)")
    name = gradhomog_install("partial", source)
    registry = Registry()
    [made] = gradhomog.pipeline(name, registry=registry)
    assert cast(Any, made).strength == 2.0
    with pytest.raises(OptionError, match="`strength` must be a number; got 'x'"):
        gradhomog.pipeline(f"{name}(strength='x')", registry=registry)
