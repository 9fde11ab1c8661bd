"""Many pictures are decoded once, into an array that later calls map from the cache folder."""

import errno
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradhomog import DataError
from gradhomog_data.domains import _picture_set, images
from gradhomog_data.domains._picture_set import decode

SIZE = 4
COUNT = 300


class Source:
    """Pictures whose values are functions of their numbers; counts how often each is decoded."""

    def __init__(self, stop=None, error=KeyboardInterrupt):
        self.decoded, self.stop, self.error = [], stop, error

    def read(self, item, size):
        if self.stop is not None and len(self.decoded) >= self.stop:
            raise self.error
        self.decoded.append(item)
        return expected(item)

    def open(self, version="1", count=COUNT, max_bytes=2**30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_picture_set, "read_picture", self.read)
            patch.setattr(_picture_set, "_identify", lambda paths: (f"{version} {path}" for path in paths))
            return decode(Path("set"), range(count), SIZE, max_bytes)[0]


def expected(item):
    return np.random.default_rng(item).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)


def assert_right(array, count=COUNT):
    assert np.array_equal(array, np.stack([expected(item) for item in range(count)]))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(_picture_set, "_BLOCK_BYTES", 20 * SIZE * SIZE * 3)


def files(cache):
    return sorted(path.suffix for path in cache.iterdir() if path.suffix != ".lock")


def test_pictures_are_decoded_once_and_then_mapped(cache):
    first, second = Source(), Source()
    assert_right(first.open())
    array = second.open()
    assert_right(array)
    assert first.decoded == list(range(COUNT))
    assert second.decoded == []
    assert files(cache) == [".npy"]
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_few_pictures_are_decoded_in_memory(cache):
    array = Source().open(count=_picture_set.CACHED_FROM - 1)
    assert array.flags.owndata
    assert not cache.exists()


def test_other_pictures_sizes_or_versions_are_decoded_again(monkeypatch):
    Source().open()
    for options in ({"version": "2"}, {"count": COUNT + 1}):
        source = Source()
        source.open(**options)
        assert source.decoded
    monkeypatch.setattr(_picture_set.importlib.metadata, "version", lambda name: "0")
    source = Source()
    source.open()
    assert source.decoded


@pytest.mark.parametrize(
    ("stop", "error"), [*((stop, KeyboardInterrupt()) for stop in (0, 1, 20, 150, COUNT - 1)), (50, DataError("bad"))]
)
def test_an_interrupted_pass_or_one_with_an_unreadable_picture_continues_where_it_ended(cache, stop, error):
    first, second = Source(stop=stop, error=error), Source()
    with pytest.raises(type(error)):
        first.open()
    assert files(cache) == [".partial"]
    assert_right(second.open())
    assert second.decoded[0] == stop // 20 * 20  # at most one block is lost
    assert files(cache) == [".npy"]


@pytest.mark.parametrize(
    ("damage", "start"), [(lambda content: content[:-7], 99), (lambda content: b"other content" * 100, 0)]
)
def test_the_whole_pictures_of_a_partial_file_are_kept(cache, damage, start):
    with pytest.raises(KeyboardInterrupt):
        Source(stop=100).open()
    (partial,) = cache.glob("*.partial")
    partial.write_bytes(damage(partial.read_bytes()))
    source = Source()
    assert_right(source.open())
    assert source.decoded == list(range(start, COUNT))


DAMAGES = {
    "half zeros": lambda content: content[: len(content) // 2].ljust(len(content), b"\0"),  # gave 69 % instead of 56 %
    "one byte": lambda content: content[:5000] + b"\7" + content[5001:],
    "cut off": lambda content: content[:-10],
    "header": lambda content: b"\x93NUMPY",
    "other": lambda content: b"no array",
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_every_changed_byte_of_a_cache_file_is_detected_and_the_pictures_are_decoded_again(cache, damage):
    Source().open()
    (path,) = cache.glob("*.npy")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(_picture_set.DamagedCacheWarning, match=path.name):
        assert_right(Source().open())
    assert_right(Source(stop=0).open())


@pytest.mark.parametrize("reason", ["full", "file", "no home"])
def test_without_a_cache_pictures_are_decoded_into_memory_up_to_the_limit(cache, monkeypatch, reason):
    if reason == "full":
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(_picture_set.shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    elif reason == "file":
        cache.parent.mkdir(parents=True)
        cache.write_text("a file in the place of the folder")
    else:
        monkeypatch.setattr(_picture_set, "cache_folder", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert_right(Source().open())
    with pytest.raises(DataError, match=r"kept in memory\. They cannot be cached on disk either \(.*\)\. Use fewer"):
        Source().open(max_bytes=100)


def test_a_disk_that_becomes_full_leaves_no_file(cache, monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_picture_set.os, "fsync", fail)
    assert_right(Source().open())
    assert files(cache) == []


def _open(folder):
    os.environ["XDG_CACHE_HOME"] = folder
    source = Source()
    source.open()
    return len(source.decoded)


@pytest.mark.slow
def test_two_processes_decode_the_same_pictures_once(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert sorted(pool.map(_open, [str(tmp_path)] * 2)) == [0, COUNT]


# real pictures


def write_set(folder, count=COUNT):
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for index in range(count // 2):
            pixels = random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index:03}.png", compress_level=0)


def test_many_pictures_are_mapped_and_one_that_changed_is_decoded_again(tmp_path):
    write_set(tmp_path / "set")
    options = {"size": SIZE, "max_bytes": 1000}  # far less than the pictures take
    before = images.images(str(tmp_path / "set"), **options)._images
    assert not before.flags.owndata
    before = before.copy()
    path = tmp_path / "set" / "a" / "007.png"
    status = path.stat()
    Image.new("RGB", (SIZE, SIZE), (1, 2, 3)).save(path, compress_level=0)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    after = images.images(str(tmp_path / "set"), **options)._images
    assert np.flatnonzero((before != after).any((1, 2, 3))).tolist() == [7]
