"""Pickles of arrays are read as data; anything else is an error, and no code is executed."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradhomog import DataError
from gradhomog.experiments.data import read_pickle as module
from gradhomog.experiments.data.pickled_arrays import PickledArray
from gradhomog.experiments.data.read_pickle import read_pickle

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)


def plain(value):
    """Replace arrays by nested lists."""
    if isinstance(value, PickledArray):
        return value.values.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value


def read(tmp_path, content):
    path = tmp_path / "a.pkl"
    path.write_bytes(content)
    return read_pickle(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "array",
    [
        IMAGES,
        np.asfortranarray(IMAGES),
        IMAGES[::2],
        IMAGES[:0],
        np.arange(300, dtype=">i4"),
        np.linspace(0, 1, 7),
        np.float32([[1.5]]),
        np.array([True, False]),
        np.array(7),
        np.zeros(100_000, dtype=np.uint8) + 200,  # longer than text that is decoded at once
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_arrays_of_every_protocol_are_those_that_python_reads(tmp_path, protocol, array):
    content = {"array": array, "twice": [array, array], "scalar": array.dtype.type(1)}
    result = read(tmp_path, pickle.dumps(content, protocol=protocol))
    read_array = result["array"].values
    assert np.array_equal(read_array, array)
    assert read_array.dtype == array.dtype
    assert result["twice"][0] is result["array"]
    assert result["scalar"] == 1


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_are_those_that_python_reads(tmp_path, protocol):
    content = {
        "a": [1, -2, 255, 70_000, 2**40, -(2**62)],
        "ü 森": (None, True, False, (), (1,), (1, 2, 3, 4)),
        "": {},
        3: [[]],
    }
    assert read(tmp_path, pickle.dumps(content, protocol=protocol)) == content


def python2_pickle():
    """`cPickle.dumps({'image_data': IMAGES, 'class_dict': {'n01': [0, 1]}}, 2)` of Python 2, written by hand."""
    data = IMAGES.tobytes()
    return (
        b"\x80\x02}q\x01(U\nimage_dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01(K\x06K\x05K\x04K\x03tcnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(data)) + data + b"tb"
        b"U\nclass_dictq\x08}q\tU\x03n01q\n]q\x0b(K\x00K\x01esu."
    )


def test_pickles_of_python_2_are_read(tmp_path):
    content = python2_pickle()
    expected = pickle.loads(content, encoding="latin1")
    result = read(tmp_path, content)
    assert np.array_equal(result["image_data"].values, IMAGES)
    assert np.array_equal(expected["image_data"], IMAGES)
    assert result["class_dict"] == expected["class_dict"] == {"n01": [0, 1]}


def test_large_arrays_are_views_on_the_file(tmp_path):
    array = read(tmp_path, pickle.dumps(np.zeros(2**22, dtype=np.uint8), protocol=4)).values
    assert not array.flags.owndata
    assert not array.flags.writeable


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


MALICIOUS = {
    "os.system": lambda mark: Call(os.system, f"touch {mark}"),
    "eval": lambda mark: Call(eval, f"open({str(mark)!r}, 'w')"),
    "open": lambda mark: Call(open, str(mark), "w"),
    "partial": lambda mark: functools.partial(os.mkdir, str(mark)),
    "in an array of objects": lambda mark: np.array([Call(os.mkdir, str(mark))], dtype=object),
    "numpy.load": lambda mark: Call(np.load, str(mark)),
    "numpy.save": lambda mark: Call(np.save, str(mark), np.zeros(3)),
    "type": lambda mark: collections.OrderedDict(a=1),
    "as key": lambda mark: {Call(os.mkdir, str(mark)): 1},
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("make", MALICIOUS.values(), ids=MALICIOUS.keys())
def test_a_pickle_that_calls_a_function_raises_and_executes_nothing(tmp_path, protocol, make):
    mark = tmp_path / "mark"
    content = pickle.dumps({"image_data": IMAGES, "class_dict": make(mark)}, protocol=protocol)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"a\.pkl: .*(never (imported|executed)|not a pickle of arrays)"):
        read(tmp_path, content)
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "a.pkl"]


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85Rq\x02.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02(S'true'\nios\nsystem\n.",  # INST
        b"\x80\x02(cos\nsystem\nS'true'\no.",  # OBJ
        b"\x80\x02cnumpy\nndarray\n)\x81.",  # NEWOBJ
        b"\x80\x02\x82\x01.",  # EXT1
        b"\x80\x02X\x01\x00\x00\x00aQ.",  # BINPERSID
        b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tostring\x93.",  # dotted name
        b"\x80\x02cnumpy\nndarray\n}b.",
        b"\x80\x02cnumpy\nndarray\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R.",
    ],
)
def test_instructions_and_names_that_can_execute_code_raise(tmp_path, content):
    with pytest.raises(DataError):
        read(tmp_path, content)


def test_a_pickle_cut_off_at_any_place_raises(tmp_path):
    for content in (python2_pickle(), pickle.dumps({"a": IMAGES[:1], "b": [1, 2]}, protocol=4)):
        for kept in range(0, len(content), 5):
            with pytest.raises(DataError, match=r"a\.pkl: "):
                read(tmp_path, content[:kept])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty. Copy or download it again"),
        (b"<!DOCTYPE html>", "does not begin as a pickle of protocol 2 to 5; it may be a web page"),
        (b"PK\x03\x04", "does not begin as a pickle"),
        (pickle.dumps([1, 2], protocol=0), "does not begin as a pickle"),
        (b"\x80\x06N.", "has protocol 6; 2 to 5 are read"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.", "is cut off: .* 9,223,372,036,854,775,807 bytes are declared"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "which is never executed"),
        (b"\x80\x02\x8a\xffx", "has an integer of 255 bytes"),
        (b"\x80\x02j\xff\xff\xff\xff.", "is not a pickle of arrays, or it is damaged"),
        (b"\x80\x02}" + b")" + b"\x85" * 10**5 + b"Ns.", "a key is neither text nor an integer"),
        (b"\x80\x02t.", "is not a pickle of arrays"),
        (b"\x80\x02.", "is not a pickle of arrays"),
        (pickle.dumps(np.array(["a"])), "which is not a type of numbers"),
        (pickle.dumps(np.zeros(2, dtype=[("a", "i4")])), "is not a pickle of arrays"),
    ],
)  # fmt: skip
def test_other_content_raises_with_the_reason(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)


def test_a_wrong_number_of_bytes_raises(tmp_path):
    content = pickle.dumps(IMAGES, protocol=2).replace(b"K\x06K\x05K\x04K\x03", b"K\x06K\x05K\x04K\x04")
    with pytest.raises(DataError, match=r"shape \(6, 5, 4, 4\) declares 480 bytes and holds 360"):
        read(tmp_path, content)


def test_the_number_of_instructions_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_INSTRUCTIONS", 1000)
    with pytest.raises(DataError, match="has more than 1,000 instructions"):
        read(tmp_path, b"\x80\x02" + b"]" * 2000 + b".")


def test_text_of_an_array_is_limited(tmp_path):
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(np.zeros(100_000, dtype=np.uint8), protocol=2))
    with pytest.raises(DataError, match="text of 100,000 bytes; `max_bytes` allows 1,000"):
        read_pickle(path, 1000)


def test_a_missing_file_raises(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        read_pickle(tmp_path / "none.pkl")


@given(data=st.data(), protocol=st.sampled_from([2, 4, 5]))
def test_any_bytes_are_read_or_raise_an_error_of_gradhomog(tmp_path_factory, data, protocol):
    content = bytearray(pickle.dumps({"a": IMAGES[0, 0], "b": {"c": [1, 2]}, "d": (None,)}, protocol=protocol))
    for _ in range(data.draw(st.integers(0, 8))):
        place = data.draw(st.integers(2, len(content) - 1))
        content[place : place + 1] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(DataError):
        plain(read(tmp_path_factory.mktemp("fuzz"), bytes(content)))
