"""Fuzzing of all inputs: any bytes and any structure give a value or an error of gradhomog, no other exception."""

import contextlib
import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from gradhomog.errors import ExpressionError, GradhomogError
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.files import open_npz
from gradhomog.registry import expression
from gradhomog_data.domains import images
from gradhomog_data.problems import regression

MAX_BYTES = 2**20


def read_images(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
        root = path if path.parent == Path(folder) else Path(folder)
        with contextlib.suppress(GradhomogError):
            images.images(str(root), size=8, max_bytes=MAX_BYTES)


def npz_bytes(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def picture_bytes(kind: str, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.effect_noise((12, 9), 50).convert(mode).save(file, kind)
    return file.getvalue()


def mutated(originals: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy that replaces some bytes and truncates or extends the end."""

    @st.composite
    def build(draw: st.DrawFn) -> bytes:
        content = bytearray(draw(st.sampled_from(originals)))
        for _ in range(draw(st.integers(0, 6))):
            place = draw(st.integers(0, len(content) - 1))
            content[place] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        if draw(st.booleans()):
            return bytes(content[: draw(st.integers(0, len(content)))])
        return bytes(content) + draw(st.binary(max_size=8))

    return build()


# texts of pipelines

tokens = st.lists(
    st.sampled_from([*"()[]{}=,:|+-'\"\\\n\0 ", "static", "none", "true", "inf", "1_0", "1e9999", "9" * 5000, "ſ", "٣"])
)


@given(tokens.map("".join) | st.text())
@example("a(b=" + "[" * 2000)
@example("a(b=" + "[" * 2000 + "]" * 2000 + ")")
@example("a(b=" + '{"a":' * 2000)
@example("a(b=" + "9" * 5000 + ")")
@example("a(b=[" + "1," * 50_000 + "])")
@example("a+" * 20_000 + "a")
def test_any_text_is_a_pipeline_or_rejected_with_a_short_message(text: str) -> None:
    for parse in (expression.parse, expression.parse_alternatives, expression.parse_one):
        try:
            parse(text)
        except ExpressionError as error:
            message, position = str(error), error.position
            assert message.count("\n") <= 2
            assert len(message) < 1000
            assert 0 <= position <= len(text)


def test_the_maximal_depth_and_length_are_accepted_and_one_more_is_rejected() -> None:
    assert expression.parse(f"a(b={'[' * 50}{']' * 50})")
    with pytest.raises(ExpressionError, match="lists and tables must be nested at most 50 levels deep"):
        expression.parse(f"a(b={'[' * 51}{']' * 51})")
    assert expression.parse(f"a(b={'9' * 1000})") == [("a", {"b": 10**1000 - 1})]


# run files

scalars = (
    st.none().map(lambda _: 0)
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
    | st.sampled_from(["none", "pcgrad(", "maml", "default", "single-task", "landscape", "regression", "glyph_pairs"])
)
NAMES = [
    "learner", "homogenizers", "seeds", "threads", "device", "domains", "episodes", "network", "train", "test",
    "problem", "name", "size", "steps", "ways", "inner_lr", "setting", "width", "channels",
]  # fmt: skip


def tables(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=4)


values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | tables(inner), max_leaves=8)


def load_run_file(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_bytes(text)
        with contextlib.suppress(GradhomogError):
            assert isinstance(load(path).to_toml(), str)


@given(tables(values))
def test_any_structure_is_a_run_file_or_rejected(content: dict[str, Any]) -> None:
    load_run_file(tomli_w.dumps(content).encode())


@given(st.binary(max_size=64) | mutated([Config().to_toml().encode()]))
@example(b"a=" + b"[" * 3000)
@example(b"a=" + b"{a=" * 3000)
@example(b"a=" + b"9" * 5000)
@example(b"a=0x" + b"f" * 5000)
@example(b"train.steps=0x" + b"f" * 5000)
@example(b"a." * 1000 + b"a=1")
@example(b"[[a.b]]\n" * 2000)
@example(b"#" * 2**20)
def test_any_bytes_are_a_run_file_or_rejected(text: bytes) -> None:
    load_run_file(text)


@given(st.text(max_size=20), values)
@example("train." * 5000 + "a", 1)
@example("train.steps." * 5000 + "a", 1)
@example("train.steps" + ".a" * 5000, 1)
@example("a", "[" * 3000)
def test_any_override_is_applied_or_rejected(key: str, value: Any) -> None:
    for text in (f"{key}={value}", f"{key}={json.dumps(value, default=str)}", key):
        with contextlib.suppress(GradhomogError):
            load(None, [text])


# data

GOOD = {
    "images": np.zeros((4, 8, 8), dtype=np.uint8),
    "labels": np.array([0, 0, 1, 1]),
    "class_names": np.array(["a", "b"]),
}
dtypes = st.sampled_from(["u1", "i1", "i8", ">u4", "u8", "f2", "f8", "c8", "?", "U1", "U3", "S2", "O", "V3", "M8[D]"])
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
arrays = st.builds(lambda dtype, shape: np.zeros(shape, dtype=dtype), dtypes, shapes)


@given(
    st.fixed_dictionaries(
        {}, optional={name: arrays | st.just(array) for name, array in GOOD.items()} | {"class_split": arrays}
    )
)
def test_any_arrays_are_images_or_rejected(content: dict[str, Any]) -> None:
    read_images("a.npz", npz_bytes(**content))


@given(st.binary(max_size=64) | mutated([npz_bytes(**GOOD), npz_bytes()]))
def test_any_bytes_are_an_npz_file_or_rejected(content: bytes) -> None:
    read_images("a.npz", content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        path.write_bytes(content)
        with contextlib.suppress(GradhomogError):
            regression.read_columns(str(path))


@given(
    st.binary(max_size=200)
    | mutated([b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3)}"])
)
def test_any_bytes_are_an_array_or_rejected(content: bytes) -> None:
    """The archive is valid: the reader reaches the header of the array."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", content)
        with contextlib.suppress(GradhomogError), open_npz(path, max_bytes=MAX_BYTES) as stored:
            assert stored.read("a").nbytes <= MAX_BYTES


GOOD_LIST = b'{"label_names": ["a", "b"], "image_names": ["x.png", "y.png"], "image_labels": [0, 1]}'


@given(st.binary(max_size=64) | mutated([GOOD_LIST]))
def test_any_bytes_are_a_file_list_or_rejected(content: bytes) -> None:
    read_images("list.json", content)


KINDS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
PICTURES = [picture_bytes(kind) for kind in KINDS] + [picture_bytes("PNG", "P"), picture_bytes("TIFF", "I;16")]


@given(st.binary(max_size=64) | mutated(PICTURES))
def test_any_bytes_are_a_picture_or_rejected(content: bytes) -> None:
    read_images("a/0.png", content)
