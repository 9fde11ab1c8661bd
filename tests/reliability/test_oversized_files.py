"""Small files that declare large content: they are rejected before anything large is decompressed or decoded."""

import io
import json
import os
import struct
import subprocess
import sys
import textwrap
import zipfile
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from gradhomog import DataError, OptionError
from gradhomog import files as npz
from gradhomog_data.domains import images

GOOD = {
    "images": np.zeros((4, 8, 8), dtype=np.uint8),
    "labels": np.array([0, 0, 1, 1]),
    "class_names": np.array(["a", "b"]),
}


def array_bytes(dtype: str, shape: tuple[int, ...], values: bytes = b"") -> bytes:
    """Return the bytes of an array file; the number of values may differ from the declared shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + values


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def write(path: Path, method: int = zipfile.ZIP_DEFLATED, **members: bytes | np.ndarray[Any, Any]) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in {**GOOD, **members}.items():
            archive.writestr(f"{name}.npy", content if isinstance(content, bytes) else npy_bytes(content))
    return path


def assert_rejected(path: Path, message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=message) as caught:
        images.images(str(path), **{"size": 8, **options})
    assert str(path) in str(caught.value)


def peak_growth(path: Path) -> tuple[str, int]:
    """Read a file in a separate process; return the error and the growth of peak memory in bytes."""
    code = """
        import resource, sys
        from gradhomog_data.domains import images
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        try: images.images(sys.argv[1], size=8)
        except Exception as error: print(type(error).__name__, str(error).splitlines()[0])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before)
    """
    # A process, because its largest memory is that of this file only.
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    *error, growth = done.stdout.splitlines()
    return "".join(error), int(growth)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "extra"])
def test_unused_arrays_are_never_decompressed(tmp_path: Path, name: str) -> None:
    """128 MiB of zeros in 128 KB: as images for four labels, and as an array of another name."""
    path = write(tmp_path / "bomb.npz", **{name: array_bytes("|u1", (2**21, 8, 8), bytes(2**27))})
    assert path.stat().st_size < 2**20
    error, growth = peak_growth(path)
    assert growth < 2**26
    assert ("`labels` must have one entry per image; got 4" in error) == (name == "images")


def test_consistent_arrays_are_read_only_up_to_the_limit(tmp_path: Path) -> None:
    many = {"images": np.zeros((1000, 8, 8), dtype=np.uint8), "labels": np.arange(1000) % 2}
    path = write(tmp_path / "many.npz", **many)
    assert images.images(str(path), size=8, max_bytes=80_000).input_shape == (1, 8, 8)
    assert_rejected(
        path, r"array 'images', uint8 \(1000, 8, 8\), declares 64,000 bytes, after 8,008 bytes of other arrays; at "
        r"most 70,000 bytes are read into memory\. .*`max_bytes`", max_bytes=70_000,
    )  # fmt: skip


def test_small_images_are_not_enlarged_beyond_the_limit(tmp_path: Path) -> None:
    many = {"images": np.zeros((1000, 1, 1), dtype=np.uint8), "labels": np.arange(1000) % 2}
    path = write(tmp_path / "many.npz", **many)
    assert_rejected(
        path, r"1,000 images of 100 x 100 pixels with 1 channels take 10,000,000 bytes", size=100, max_bytes=10**6
    )


def test_an_image_array_of_too_many_pixels_is_rejected(tmp_path: Path) -> None:
    arrays = {"labels": np.array([0]), "class_names": np.array(["a"])}
    with zipfile.ZipFile(tmp_path / "one.npz", "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", npy_bytes(array))
        archive.writestr("images.npy", array_bytes("|u1", (1, 10_000, 9_000), bytes(90_000_000)))
    assert_rejected(tmp_path / "one.npz", r"a picture of 9000 x 10000 pixels; at most 89,478,485 pixels are decoded")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (array_bytes("|u1", (2**40, 8, 8)), "declares .* bytes, .* and holds 0"),
        (array_bytes("|u1", (4, 8, 8), bytes(257)), "declares 256 bytes, .* and holds 257"),
        (array_bytes("|u1", (-4, 8, -8), bytes(256)), "must hold numbers or text"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "its header cannot be read"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 2**20, "its header cannot be read"),
        (b"", "its header cannot be read"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_the_values_is_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    assert_rejected(write(tmp_path / "odd.npz", images=content), f"array 'images'.*{message}")


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    assert_rejected(
        write(tmp_path / "odd.npz", class_names=array_bytes("<U1", (2,), b"\xff" * 8)), "text that is not valid Unicode"
    )


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_numpy_does_not_write_are_rejected(tmp_path: Path, method: int) -> None:
    assert_rejected(write(tmp_path / "odd.npz", method), "must be stored or deflated")


def test_more_names_than_images_are_rejected_before_they_are_read(tmp_path: Path) -> None:
    names = np.array([f"class {index}" for index in range(9)])
    assert_rejected(write(tmp_path / "odd.npz", class_names=names), "`class_names` has 9 entries for 4 images")
    assert_rejected(write(tmp_path / "odd.npz", class_split=names), "`class_split` has 9 entries for 4 images")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i4", ">i4", "<f8", "|b1", "<U3", "|S3", "<c16"])
def test_arrays_read_as_numpy_reads_them(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4).astype(dtype), order=order)
    np.savez_compressed(tmp_path / "a.npz", array=array, scalar=array[0, 0, 0], nothing=array[:0])
    with npz.open_npz(tmp_path / "a.npz") as opened, np.load(tmp_path / "a.npz", allow_pickle=False) as expected:
        assert opened.names == ["array", "nothing", "scalar"]
        for name in opened.names:
            read = opened.read(name)
            assert read.dtype == expected[name].dtype
            assert np.array_equal(read, expected[name])


def header_only_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("limit", ["Pillow's own", "none"])
@pytest.mark.parametrize("size", [(10_000, 10_000), (2**31 - 1, 2**31 - 1)])
def test_a_picture_of_too_many_pixels_is_rejected_by_its_header(
    tmp_path: Path, size: tuple[int, int], limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit == "none":  # programs often disable Pillow's limit globally
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "0.png").write_bytes(header_only_png(*size))
    with pytest.raises(DataError, match=r"0\.png: .*pixels"):
        images.images(str(tmp_path / "set"), size=8)


def test_postscript_with_the_name_of_a_picture_is_not_executed(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "0.png").write_text(
        f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n({tmp_path / 'mark'}) (w) file closefile\n"
    )
    with pytest.raises(DataError, match=r"0\.png: cannot be read as a picture \(cannot identify"):
        images.images(str(tmp_path / "set"), size=8)
    assert not (tmp_path / "mark").exists()


def test_too_many_pictures_are_rejected_before_any_is_opened(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    for index in range(3):
        (tmp_path / "set" / "a" / f"{index}.png").write_bytes(b"no picture")
    assert_rejected(tmp_path / "set", "3 images of 8 x 8 pixels with 3 channels take 576 bytes", max_bytes=500)


# file lists


def write_list(path: Path, **change: Any) -> Path:
    content = {"label_names": ["a", "b"], "image_names": ["x.png", "y.png"], "image_labels": [0, 1], **change}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.slow
def test_a_million_absent_files_are_counted_by_folders(tmp_path: Path) -> None:
    count = 10**6
    names, labels = [f"gone/{index}.png" for index in range(count)], [index % 2 for index in range(count)]
    path = write_list(tmp_path / "list.json", image_names=names, image_labels=labels)
    with mock.patch.object(os.path, "isfile", wraps=os.path.isfile) as isfile:
        assert_rejected(path, r"1000000 of the 1000000 listed images do not exist, the first is .*gone/0\.png")
    assert isfile.call_count == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_names": ["a\0b.png", "\ud800.png"]}, "2 of the 2 listed images do not exist"),
        ({"label_names": [str(index % 99_999) for index in range(100_000)]}, "must differ from each other; '0'"),
        ({"label_names": [[[[]]] * 10_000]}, r"must be a list of text; got \[\[\[\]\], \[\[\]\]"),
    ],
)
def test_invalid_entries_of_a_list_are_rejected(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert_rejected(write_list(tmp_path / "list.json", **change), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"label_names": [' + "9" * 5000 + "]}", "is not valid JSON"),
        ("\ufeff{}", "needs the key `label_names` with a list"),
    ],
)
def test_json_that_exhausts_the_parser_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.json").write_text(text, encoding="utf-8")
    assert_rejected(tmp_path / "list.json", message)


def test_a_file_list_is_read_up_to_its_share_of_the_limit(tmp_path: Path) -> None:
    path = write_list(tmp_path / "list.json")
    size = path.stat().st_size
    assert_rejected(path, f"has {size} bytes; at most {size - 1} bytes are read", max_bytes=64 * (size - 1))
    assert_rejected(path, "2 of the 2 listed images do not exist", max_bytes=64 * size)


# paths


def test_invalid_paths_are_rejected(tmp_path: Path) -> None:
    for variant in ("a\0b.npz", "~nobody-of-this-name/a.npz"):
        with pytest.raises(OptionError, match="`images`"):
            images.images(variant, size=8)
    for variant in ("x" * 5000, "x" * 5000 + ".npz"):
        with pytest.raises(DataError, match=r"x: |npz: "):
            images.images(variant, size=8)
