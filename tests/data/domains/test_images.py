import importlib.util
import json

import numpy as np
import pytest
from PIL import Image

from gradhomog import DataError, OptionError
from gradhomog_data.domains import images

NPZ = {
    "images": np.arange(4, dtype=np.uint8)[:, None, None, None] + np.zeros((4, 8, 8, 3), dtype=np.uint8),
    "labels": np.array([0, 0, 1, 1]),
    "class_names": np.array(["a", "b"]),
}


def write_npz(path, **change):
    np.savez(path, **{name: array for name, array in {**NPZ, **change}.items() if array is not None})
    return str(path)


def write_pictures(folder, classes, *, size=(8, 8), suffix=".png"):
    """`{class: [grey values]}` as one plain picture each."""
    for name, values in classes.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index, value in enumerate(values):
            Image.new("RGB", size, (value, value, value)).save(folder / name / f"{index:02}{suffix}")


def contents(domain):
    """Class name -> sorted grey values of its images."""
    values = {}
    for index, name in enumerate(domain.class_names):
        count = int(domain._counts[index])
        start = int(domain._starts[index])
        values[name] = sorted(domain._images[start : start + count, 0, 0, 0].tolist())
    return values


def test_the_three_formats_give_the_same_domain(tmp_path):
    classes = {"ant": [10, 20, 30], "bee": [40, 50], "cat": [60]}
    write_pictures(tmp_path / "folder", classes)
    listed = [(f"folder/{name}/{i:02}.png", k) for k, name in enumerate(classes) for i in range(len(classes[name]))]
    paths, labels = zip(*reversed(listed), strict=True)
    lists = {"label_names": list(classes), "image_names": paths, "image_labels": labels}
    (tmp_path / "list.json").write_text(json.dumps(lists))
    values = np.array([value for group in classes.values() for value in group], dtype=np.uint8)
    stack, labels = np.tile(values[:, None, None], (1, 8, 8)), np.array([0, 0, 0, 1, 1, 2], dtype=np.int16)
    write_npz(tmp_path / "array.npz", images=stack, labels=labels, class_names=np.array(list(classes)))
    for name, channels in (("folder", 3), ("list.json", 3), ("array.npz", 1)):
        domain = images.images(str(tmp_path / name), size=8)
        assert domain.name == name.split(".")[0]
        assert domain.input_shape == (channels, 8, 8)
        assert contents(domain) == classes
        assert domain.class_split == ("train",) * 3  # of three classes a quarter is none


def write_lists(folder, encoding, separator="/"):
    """The same list as JSON and as CSV; returns their classes."""
    classes = {"Äpfel": [10, 20], "bee": [40]}
    write_pictures(folder / "images", classes)
    rows = [
        (f"images{separator}{name}{separator}{i:02}.png", name) for name in classes for i in range(len(classes[name]))
    ]
    names = list(classes)
    content = {
        "label_names": names,
        "image_names": [r[0] for r in rows],
        "image_labels": [names.index(r[1]) for r in rows],
    }
    (folder / "list.json").write_text(json.dumps(content, ensure_ascii=False), encoding)
    (folder / "train.csv").write_text("\n".join(["filename,label", *map(",".join, rows)]), encoding)
    return classes


@pytest.mark.parametrize(("encoding", "separator"), [("utf-8", "/"), ("utf-8-sig", "/"), ("utf-8", "\\")])
def test_lists_may_come_from_windows(tmp_path, encoding, separator):
    classes = write_lists(tmp_path, encoding, separator)
    assert contents(images.images(str(tmp_path / "list.json"), size=8)) == classes
    assert contents(images.images(str(tmp_path), size=8)) == classes


@pytest.mark.parametrize(("encoding", "found"), [("utf-16", ", it may be UTF-16"), ("cp1252", ""), ("gb18030", "")])
def test_a_list_of_another_encoding_raises_with_file_and_remedy(tmp_path, encoding, found):
    write_lists(tmp_path, encoding)
    for file in (tmp_path / "list.json", tmp_path / "train.csv"):
        message = rf"{file.name}: must be UTF-8 text; byte \d+ is 0x..{found}\. Save it as UTF-8"
        with pytest.raises(DataError, match=message):
            images.images(str(file if file.suffix == ".json" else tmp_path), size=8)


def test_what_archives_of_macos_and_empty_folders_add_is_no_class(tmp_path):
    write_pictures(tmp_path, {"a": [1], "b": [2], "empty": [], "__MACOSX": []})
    (tmp_path / "empty" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "__MACOSX" / "a").mkdir()
    assert contents(images.images(str(tmp_path), size=8)) == {"a": [1], "b": [2]}


def test_split_folders_and_lists_are_the_official_split(tmp_path):
    for split, name, grey in (("train", "ant", 1), ("val", "bee", 2), ("test", "cat", 3)):
        write_pictures(tmp_path / "tree" / split, {name: [grey]})
    domain = images.images(str(tmp_path / "tree"), size=8)
    assert (domain.class_names, domain.class_split) == (("ant", "bee", "cat"), ("train", "val", "test"))

    lists = tmp_path / "lists"
    lists.mkdir()
    for file, label in (("base.json", 0), ("novel.json", 2)):  # label_names are shared, as in published lists
        split = {"base.json": "train", "novel.json": "test"}[file]
        names = ["ant", "bee", "cat"]
        image = str(tmp_path / "tree" / split / names[label] / "00.png")
        content = {"label_names": names, "image_names": [image], "image_labels": [label]}
        (lists / file).write_text(json.dumps(content))
    domain = images.images(str(lists), size=8)
    assert domain.name == "lists"
    assert dict(zip(domain.class_names, domain.class_split, strict=True)) == {"ant": "train", "cat": "test"}
    assert contents(domain) == {"ant": [1], "cat": [3]}


def test_an_npz_split_is_the_official_split(tmp_path):
    domain = images.images(write_npz(tmp_path / "a.npz", class_split=np.array(["test", "val"])), size=8)
    assert domain.class_split == ("test", "val")


def test_images_of_the_right_size_are_not_changed(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    domain = images.images(write_npz(tmp_path / "a.npz", images=noise), size=8)
    assert np.array_equal(domain._images, noise)
    folder = tmp_path / "folder" / "only"
    folder.mkdir(parents=True)
    Image.fromarray(noise[0]).save(folder / "0.png")
    assert np.array_equal(images.images(str(folder.parent), size=8)._images[0], noise[0])


def test_shrinking_does_not_alias_and_crops_the_centre(tmp_path):
    """Stripes of one pixel must become grey, and pixels beside the central square must be removed."""
    picture = np.full((32, 64, 3), 255, dtype=np.uint8)
    picture[:, 16:48] = np.where(np.arange(32)[None, :, None] % 2, 200, 0)
    stack = np.repeat(picture[None], 2, axis=0)
    folder = tmp_path / "folder" / "only"
    folder.mkdir(parents=True)
    Image.fromarray(picture).save(folder / "0.png")
    for path in (write_npz(tmp_path / "a.npz", images=stack, labels=np.array([0, 1])), str(folder.parent)):
        small = images.images(path, size=4)._images
        assert small.shape[1:] == (4, 4, 3)
        assert np.abs(small.astype(int) - 100).max() <= 4


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16", "LA", "CMYK", "1"])
def test_pictures_of_every_common_mode_are_read(tmp_path, mode):
    folder = tmp_path / "set" / "only"
    folder.mkdir(parents=True)
    if mode == "I;16":
        picture = Image.fromarray(np.full((8, 8), 128 * 257, dtype=np.uint16))
    else:
        picture = Image.new("L", (8, 8), 128).convert("RGB" if mode == "CMYK" else mode)
        picture = picture.convert(mode)
    picture.save(folder / ("0.tif" if mode == "CMYK" else "0.png"))
    read = images.images(str(folder.parent), size=8)._images
    if mode == "1":  # dithered: black and white
        assert set(np.unique(read)) <= {0, 255}
    else:
        assert np.abs(read.astype(int) - 128).max() <= 1


def test_class_split_assigns_all_classes_to_one_split(tmp_path):
    write_pictures(tmp_path / "set", {name: [1] for name in "abcdefgh"})
    own = images.images(str(tmp_path / "set"), size=8)
    assert set(own.class_split) == {"train", "val", "test"}
    assert set(images.images(str(tmp_path / "set"), size=8, class_split="train").class_split) == {"train"}


def test_per_class_takes_the_first_files_by_name(tmp_path):
    write_pictures(tmp_path / "set", {"a": [1, 2, 3], "b": [4]})
    assert contents(images.images(str(tmp_path / "set"), size=8, per_class=2)) == {"a": [1, 2], "b": [4]}


def test_hidden_files_and_files_of_other_kinds_are_ignored(tmp_path):
    write_pictures(tmp_path / "set", {"a": [1]})
    (tmp_path / "set" / ".git").mkdir()
    (tmp_path / "set" / "a" / "notes.txt").write_text("no picture")
    (tmp_path / "set" / "a" / "._00.png").write_bytes(b"left by macOS")
    assert contents(images.images(str(tmp_path / "set"), size=8)) == {"a": [1]}


# invalid npz files


def assert_raises(path, message, **options):
    with pytest.raises(DataError, match=message) as caught:
        images.images(str(path), **{"size": 8, **options})
    assert str(path) in str(caught.value)


CUT = "is not an .npz file, or its end is cut off"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((lambda data, kept=kept: data[:kept], CUT) for kept in (0, 10, 200, -30)),
        (lambda data: data[:300] + b"\xff" * 10 + data[310:], "cannot be read as .npz, it may be damaged"),
    ],
)
def test_a_damaged_npz_file_raises(tmp_path, damage, message):
    path = tmp_path / "damaged.npz"
    write_npz(path)
    path.write_bytes(damage(path.read_bytes()))
    assert_raises(path, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "are required; missing: labels; found: "),
        ({"class_names": np.array(["a", "b"], dtype=object)}, "holds pickled objects, which are never loaded"),
        ({"class_names": np.array([1, 2])}, r"`class_names` must be an array of text \[classes\]; got int64 \(2,\)"),
        ({"class_split": np.array([0, 1])}, r"`class_split` must be an array of text"),
    ],
)
def test_npz_arrays_that_are_absent_pickled_or_of_the_wrong_kind_raise(tmp_path, change, message):
    path = tmp_path / "wrong.npz"
    write_npz(path, **change)
    assert_raises(path, message)


# invalid folders and lists


def test_a_missing_path_or_one_of_an_unknown_kind_raises(tmp_path):
    for name in ("nowhere", "none.npz", "none.json"):
        assert_raises(tmp_path / name, "there is no such file")
    (tmp_path / "data.csv").write_text("filename,label")
    assert_raises(tmp_path / "data.csv", r"must be an \.npz file, a \.json file list or a folder; got \.csv")


def test_a_folder_without_class_folders_raises(tmp_path):
    assert_raises(tmp_path, "contains no folders of pictures; one folder of pictures per class is required")
    (tmp_path / "train").mkdir()
    assert_raises(tmp_path, "split folders such as train/ contain no folders")


def test_a_class_folder_without_pictures_raises(tmp_path):
    write_pictures(tmp_path / "set", {"a": [1], "b": []})
    (tmp_path / "set" / "b" / "x.svg").write_text("<svg/>")
    with pytest.raises(DataError, match=r"b: class 'b' has no pictures; supported are \.png.*found \.svg"):
        images.images(str(tmp_path / "set"), size=8)


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_an_unreadable_picture_raises_with_its_path(tmp_path, damage):
    write_pictures(tmp_path, {"a": [1, 2]}, size=(64, 64))
    path = tmp_path / "a" / "01.png"
    path.write_bytes(path.read_bytes()[:60] if damage == "cut" else b"no picture")
    with pytest.raises(DataError, match=r"01\.png: cannot be read as a picture"):
        images.images(str(tmp_path), size=8)


def test_a_picture_of_floats_raises(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.zeros((8, 8), dtype=np.float32)).save(tmp_path / "a" / "0.tif")
    with pytest.raises(DataError, match=r"0\.tif: .*mode F have no known range"):
        images.images(str(tmp_path), size=8)


LIST = {"label_names": ["a", "b"], "image_names": ["a/00.png", "b/00.png"], "image_labels": [0, 1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "needs the key `label_names` with a list; got NoneType"),
        (json.dumps({**LIST, "image_labels": [0, 2]}), r"`image_labels` must be in 0\.\.1; got 2 at position 1"),
        (json.dumps({**LIST, "image_labels": [0, -1]}), r"`image_labels` must be in 0\.\.1; got -1 at position 1"),
        (json.dumps({**LIST, "image_labels": [0]}), "must have the same length, at least 1; got 2 and 1"),
        (json.dumps({**LIST, "image_labels": [0, 1.5]}), r"`image_labels` must be a list of integers; got 1\.5"),
        (json.dumps({**LIST, "label_names": ["a", "a"]}), "`label_names` must differ from each other; 'a'"),
        (
            json.dumps({**LIST, "image_names": ["a/00.png", "b/77.png"]}),
            r"1 of the 2 listed images do not exist.*77\.png",
        ),
    ],
)
def test_a_bad_file_list_raises(tmp_path, text, message):
    write_pictures(tmp_path, {"a": [1], "b": [2]})
    path = tmp_path / "list.json"
    path.write_text(text)
    assert_raises(path, message)


def test_options_are_checked(tmp_path):
    path = write_npz(tmp_path / "a.npz")
    with pytest.raises(OptionError, match="`images` needs a path"):
        images.images("", size=8)
    with pytest.raises(OptionError, match=r"`per_class` must be omitted for \.npz files"):
        images.images(path, size=8, per_class=3)


def test_without_pillow_only_npz_files_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert images.images(write_npz(tmp_path / "a.npz"), size=4).input_shape == (3, 4, 4)
    write_pictures(tmp_path / "set", {"a": [1]})
    assert_raises(tmp_path / "set", r"pip install 'gradhomog\[images\]'")
