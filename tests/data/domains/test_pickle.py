"""Pickles of arrays are read as data in a limited process; anything else is an error, and no code is executed."""

import collections
import contextlib
import functools
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradhomog import DataError
from gradhomog_data import _pickle as module
from gradhomog_data._pickle import open_pickle

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)


def read(tmp_path, content, keys=("a",), **options):
    """Return the arrays of a pickle by name."""
    path = tmp_path / "a.pkl"
    path.write_bytes(content)
    with open_pickle(path, keys, **options) as stored:
        return {name: stored.read(name) for name in stored.names}


ARRAYS = [
    IMAGES,
    np.asfortranarray(IMAGES),
    IMAGES[::2],
    IMAGES[:0],
    np.arange(300, dtype=">i4"),
    np.linspace(0, 1, 7),
    np.float32([[1.5]]),
    np.array([True, False]),
    np.array(7),
    np.zeros(100_000, dtype=np.uint8) + 200,
]


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_every_protocol_are_those_that_python_reads(tmp_path, protocol):
    content = {
        "a": dict(enumerate(ARRAYS)),
        "rows": {"ü 森": [1, -2, 255, 70_000, 2**40, -(2**62)], "": [], "same": ARRAYS[0]},
        "ignored": [None, True, (1, "a"), 2**70, np.float32(1), {"b": [[]]}, b"\xff"],
    }
    result = read(tmp_path, pickle.dumps(content, protocol=protocol), ("a", "rows"))
    for index, array in enumerate(ARRAYS):
        assert np.array_equal(result[f"a/{index}"], array)
        assert result[f"a/{index}"].dtype == array.dtype
    assert np.array_equal(result["rows/same"], IMAGES)
    assert result["rows/ü 森"].tolist() == content["rows"]["ü 森"]
    assert result["rows/"].shape == (0,)
    assert len(result) == len(ARRAYS) + 3


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
    result = read(tmp_path, content, ("image_data", "class_dict"))
    assert np.array_equal(result["image_data"], IMAGES)
    assert np.array_equal(expected["image_data"], IMAGES)
    assert result["class_dict/n01"].tolist() == expected["class_dict"]["n01"] == [0, 1]


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


@pytest.mark.parametrize("protocol", [0, 5])
@pytest.mark.parametrize("make", MALICIOUS.values(), ids=MALICIOUS.keys())
def test_a_pickle_that_calls_a_function_raises_and_executes_nothing(tmp_path, protocol, make):
    mark = tmp_path / "mark"
    content = pickle.dumps({"a": IMAGES, "class_dict": make(mark)}, protocol=protocol)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"a\.pkl: .*(never imported|not a type of numbers)"):
        read(tmp_path, content)
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "a.pkl"]


def test_no_module_is_imported_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert np.array_equal(read(tmp_path, pickle.dumps({"a": IMAGES}))["a"], IMAGES)
    assert not (tmp_path / "mark").exists()


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
        b"\x80\x02c_codecs\nencode\nN}X\x0c\x00\x00\x00__defaults__K\x01\x85s\x86b.",  # attributes of a function
        b"\x80\x02}X\x01\x00\x00\x00acnumpy\ndtype\nX\x02\x00\x00\x00O8\x85Rs.",
    ],
)
def test_instructions_and_names_that_can_execute_code_raise(tmp_path, content):
    with pytest.raises(DataError, match=r"a\.pkl: "):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "EOFError"),
        (b"<!DOCTYPE html>", "invalid load key, '<'"),
        (b"\x80\x06N.", "unsupported pickle protocol: 6"),
        (python2_pickle()[:200], "pickle data was truncated|EOFError"),
        (pickle.dumps([1, 2]), "must be a dictionary with `a`; found list"),
        (pickle.dumps({"b": 1}), "must be a dictionary with `a`; found the keys 'b'"),
        (pickle.dumps({"a": ["b"]}), "'a' must be an array or a list of integers; got a list"),
        (pickle.dumps({"a": {"1": [0], 1: [1]}}), "`a` has two keys of the same text"),
        (pickle.dumps({"a": np.array(["a"])}), "which is not a type of numbers"),
        (pickle.dumps({"a": np.zeros(2, dtype=[("a", "i4")])}), "which is not a type of numbers"),
        (
            pickle.dumps({"a": IMAGES}, protocol=2).replace(b"K\x06K\x05K\x04K\x03", b"K\x06K\x05K\x04K\x04"),
            r"cannot reshape array of size 360 into shape \(6,5,4,4\)",
        ),
    ],
)  # fmt: skip
def test_other_content_raises_with_the_reason(tmp_path, content, message):
    with pytest.raises(DataError, match=rf"a\.pkl: .*({message}).* Download it again\."):
        read(tmp_path, content)


def encoded_many_times():
    """A memoized text of 2 MB that is encoded 500 times: 1 GB, of which each array alone would be small."""
    text = b"X" + struct.pack("<I", 2**21) + b"a" * 2**21
    setup = b"\x80\x02c_codecs\nencode\nq\x00" + text + b"q\x01X\x06\x00\x00\x00latin1q\x02]"
    return setup + b"h\x00h\x01h\x02\x86Ra" * 500 + b"."


def nested_keys():
    """A tuple of tuples, each with the next one twice, as a key: its hash takes 2 ** 60 steps."""
    return b"\x80\x02}" + b")" + b"q\x00h\x00\x86" * 60 + b"Ns."


@pytest.mark.parametrize(
    "content",
    [
        encoded_many_times(),
        nested_keys(),
        b"\x80\x02}" + b")" + b"\x85" * 10**6 + b"Ns.",  # a tuple of depth 1e6, whose hash exhausts the C stack
        b"\x80\x02Nr" + b"\xff" * 4 + b".",  # the memo would have 2 ** 32 entries
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b".",
        b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",
    ],
    ids=["sum of texts", "hash", "depth", "memo", "bytes", "bytearray", "constructor"],
)
@pytest.mark.skipif(os.name != "posix", reason="needs limits of processes")
def test_memory_and_time_are_limited_in_sum(tmp_path, content, monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 1)
    with pytest.raises(DataError, match=r"a\.pkl: "):
        read(tmp_path, content)


def test_files_and_arrays_beyond_the_limit_and_missing_files_raise(tmp_path):
    content = pickle.dumps({"a": np.zeros(2000, dtype=np.uint8)})
    with pytest.raises(DataError, match=r"a\.pkl: array 'a', .* declares 2,000 bytes; at most 1,500"):
        read(tmp_path, content, max_bytes=1500)
    with pytest.raises(DataError, match=r"a\.pkl: has 2,.* bytes; at most 1,000 bytes are read\. Remove some"):
        read(tmp_path, content, max_bytes=500, advice="Remove some.")
    with pytest.raises(DataError, match="there is no such file"), open_pickle(tmp_path / "none.pkl", ("a",)):
        pass


@settings(max_examples=10)
@given(data=st.data(), protocol=st.sampled_from([2, 4, 5]))
def test_any_bytes_are_read_or_raise_an_error_of_gradhomog(tmp_path_factory, data, protocol):
    content = bytearray(pickle.dumps({"a": IMAGES[0, 0], "b": {"c": [1, 2]}, "d": (None,)}, protocol=protocol))
    for _ in range(data.draw(st.integers(0, 8))):
        place = data.draw(st.integers(2, len(content) - 1))
        content[place : place + 1] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(DataError):
        read(tmp_path_factory.mktemp("fuzz"), bytes(content))
