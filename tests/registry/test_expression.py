"""The text form of a pipeline."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradhomog.errors
from gradhomog import ExpressionError
from gradhomog.registry.expression import parse, parse_alternatives, parse_one, render, render_one

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(alphabet="\"'\\\n\t nt")
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
names = st.from_regex(r"[A-Za-z_]\w*", fullmatch=True)
selectors = st.from_regex(r"[A-Za-z_][\w.\-]*(:[a-z]+)?", fullmatch=True).filter(lambda name: name != "none")
pipelines = st.lists(st.tuples(selectors, st.dictionaries(names, values, max_size=3)), max_size=3)


@given(pipelines)
def test_parsing_rendered_text_gives_the_same_values_and_types(members: list[tuple[str, dict[str, Any]]]) -> None:
    read = parse(render(members))
    assert read == members
    assert repr(read) == repr(members)  # 1, 1.0 and true are equal, but of different types


@pytest.mark.parametrize("text", ["", "  \n", "none", " none ", "none()"])
def test_none_and_empty_text_are_the_empty_pipeline(text: str) -> None:
    assert parse(text) == []


def test_the_empty_pipeline_is_rendered_as_none() -> None:
    assert render([]) == "none"


VALUES: dict[str, object] = {
    "1e-3": 0.001, "-0.5": -0.5, "+2": 2, ".5": 0.5, "2.": 2.0, "1E5": 100000.0, "7": 7, "-7": -7, "1_000": 1000,
    "inf": math.inf, "-inf": -math.inf, "true": True, "False": False, "none": None, "None": None,
    '"a + b (c)"': "a + b (c)", "'it is \"so\"'": 'it is "so"', r'"a \"b\""': 'a "b"', r'"C:\\new"': "C:\\new",
    r'"two\nlines"': "two\nlines", '"größer"': "größer",
    "[]": [], "[1, [2.0, none], 'x',]": [1, [2.0, None], "x"],
    "{}": {}, '{"*": 1, "birds": {"a": [2]}}': {"*": 1, "birds": {"a": [2]}},
}  # fmt: skip


@pytest.mark.parametrize(("written", "value"), VALUES.items())
def test_a_value_is_read_with_its_type(written: str, value: object) -> None:
    [(_, options)] = parse(f"name(option={written})")
    assert options == {"option": value}
    assert type(options["option"]) is type(value)


def test_spaces_and_line_ends_between_tokens_are_ignored() -> None:
    text = 'a\n  + dist : b ( x = [ 1 ,\t2 ] , y = { "k" : "v w" } )'
    assert parse(text.replace(" : b", ":b")) == [("a", {}), ("dist:b", {"x": [1, 2], "y": {"k": "v w"}})]


def test_numbers_of_numpy_are_rendered_as_numbers() -> None:
    assert render_one("a", {"rate": np.float64(0.25), "seed": np.int64(3)}) == "a(rate=0.25, seed=3)"


# ‸ marks the character that the caret must be under: it precedes it.
@pytest.mark.parametrize(
    ("marked", "reason"),
    [
        ("pcgrad ‸pcgrad", "expected '+' and another name, or the end"),
        ("‸+ pcgrad", "expected a name"),
        ("‸3grad", "expected a name"),
        ("dist‸: a", "expected '+' and another name, or the end"),
        ("a(‸=1)", "expected an option's name or ')'"),
        ("a(b=1, ‸2)", "expected an option's name or ')'"),
        ("a(b‸)", "expected '=' and a value for the option 'b'"),
        ("a(b=1, ‸b=2)", "option 'b' is given twice"),
        ("a(b=‸word)", "expected a value"),
        ("a(b=‸nan)", "expected a value"),
        ('a(b=‸"open)', "expected a value"),
        ("a(b=[1 ‸2])", "expected ',' or ']'"),
        ("a(b={‸1: 2})", "expected a key in quotes"),
        ("a(b={'k': 1, ‸'k': 2})", "key 'k' is given twice"),
        (r"a(b='C:‸\dir')", r"'\d' is not a valid escape"),
        (r"a(b='ok', c={'‸\x41': 1})", r"'\x' is not a valid escape"),
        ("none‸(x=1)", "'none' is the empty pipeline and takes no options"),
        ("nonesuch(x='none') + ‸none", "'none' is the empty pipeline and cannot be combined"),
        ("a +\n  b ‸c\n+ d", "expected '+' and another name, or the end"),
        ("a\n+ \tb(‸!)\n+ d", "expected an option's name or ')'"),
    ],
)
def test_an_error_has_a_reason_and_a_caret_under_the_character(marked: str, reason: str) -> None:
    before, _, after = marked.partition("‸")
    with pytest.raises(ExpressionError) as raised:
        parse(before + after)
    assert raised.value.position == len(before)
    assert raised.value.text == before + after
    message, line, caret = str(raised.value).split("\n")
    assert message.startswith(reason)
    expected = before.rpartition("\n")[2] + after.partition("\n")[0]
    assert line == "  " + expected.replace("\t", " ")
    assert caret == " " * (2 + len(before.rpartition("\n")[2])) + "^"


def test_a_single_name_may_have_options_and_nothing_after_it() -> None:
    assert parse_one("glyphs:greek(background=0.3)") == ("glyphs:greek", {"background": 0.3})
    assert parse_one("dist:glyphs:greek") == ("dist:glyphs:greek", {})
    with pytest.raises(ExpressionError, match="expected the end of the text: only one name is allowed here") as raised:
        parse_one("maml + anil")
    assert raised.value.position == 5


def test_alternatives_are_pipelines_separated_by_a_bar() -> None:
    assert parse_alternatives("none | a + b(x='|')") == [[], [("a", {}), ("b", {"x": "|"})]]
    with pytest.raises(ExpressionError, match=r"'\|' and another pipeline, or the end") as raised:
        parse_alternatives("a | b c")
    assert raised.value.position == 6
    with pytest.raises(ExpressionError, match="cannot be combined") as raised:
        parse_alternatives("none | a + none")
    assert raised.value.position == 11


def test_every_exception_survives_a_process_boundary() -> None:
    for name, kind in vars(gradhomog.errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            error = kind("reason", "a + b", 2) if kind is ExpressionError else kind("a message")
            copied = pickle.loads(pickle.dumps(error))
            assert type(copied) is kind, name
            assert (str(copied), vars(copied)) == (str(error), vars(error))
