"""The domain `images` reads CSV splits."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gradhomog import DataError
from gradhomog.errors import GradhomogError
from gradhomog_data.domains import images

SPLITS = ("train", "val", "test")
CLASSES = {"train": ["ant", "bee"], "val": ["cat"], "test": ["dog", "eel"]}


def grey(split, index):
    return 50 * SPLITS.index(split) + 10 * index


def write_csv(root, *, header="filename,label", place="images", row="{image},{label}", encoding="utf-8"):
    for split, classes in CLASSES.items():
        lines = [header]
        for index, label in enumerate(classes):
            for number in range(2):
                image = f"{label}{number}.png"
                folder = root / place.format(label=label)
                folder.mkdir(parents=True, exist_ok=True)
                value = grey(split, index) + number
                Image.new("RGB", (8, 8), (value, value, value)).save(folder / image)
                lines.append(row.format(image=image, label=label))
        (root / f"{split}.csv").write_text("\r\n".join(lines) + "\r\n", encoding=encoding)
    return root


def assert_right(root, **options):
    domain = images.images(str(root), size=8, **options)
    assert domain.class_names == ("ant", "bee", "cat", "dog", "eel")
    assert domain.class_split == ("train", "train", "val", "test", "test")
    first = domain._images[:, 0, 0, 0].reshape(5, -1).tolist()
    starts = [grey(split, index) for split in SPLITS for index in range(len(CLASSES[split]))]
    assert first == [[start + number for number in range(2)][: options.get("per_class")] for start in starts]


LAYOUTS = {
    "filename and label": {},
    "other columns": {"header": "id,label,filename,note", "row": "7,{label},{image},"},
    "easyfsl": {"header": "class_name,image_name", "row": "{label},{image}"},
    "folders of classes": {"place": "{label}", "header": "class_name,image_name", "row": "{label},{image}"},
    "folders of classes in images": {"place": "images/{label}"},
    "beside the lists": {"place": "."},
    "byte order mark": {"encoding": "utf-8-sig"},
    "quotes": {"row": '"{image}","{label}"'},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_csv_splits_of_every_layout_give_the_same_domain(tmp_path, layout):
    assert_right(write_csv(tmp_path, **layout))
    assert_right(tmp_path, per_class=1)


def assert_raises(root, message, name):
    with pytest.raises(DataError, match=message) as caught:
        images.images(str(root), size=8)
    assert name in str(caught.value)


CSV_DAMAGES = {
    "no column": (
        "filename,class\na.png,x\n",
        "must have the columns filename and label, or .*; found: filename, class",
    ),
    "empty": ("", "has no rows after its first line"),
    "cut off in a row": ("filename,label\nant0.png,ant\nant1", "row 3 has 1 values for 2 columns"),
    "empty class": ("filename,label\nant0.png,\n", "row 2 needs a file and a class; got 'ant0.png' and ''"),
    "missing picture": (
        "filename,label\nant0.png,ant\nant7.png,ant\n",
        "1 of the 2 listed images do not exist, the first is .*ant7.png. They are searched in images/",
    ),
    "picture twice": ("filename,label\nant0.png,ant\nant0.png,bee\n", "image .*ant0.png occurs more than once"),
    "class in two splits": ("filename,label\ncat0.png,cat\n", "splits must not share a class; 'cat'"),
    "other quotes": ('filename,label\n"a"b,c\n', "is not a CSV file"),
}


@pytest.mark.parametrize(("text", "message"), CSV_DAMAGES.values(), ids=CSV_DAMAGES.keys())
def test_a_damaged_csv_file_raises(tmp_path, text, message):
    write_csv(tmp_path)
    (tmp_path / "train.csv").write_text(text)
    assert_raises(tmp_path, message, ".csv")


def test_a_csv_file_is_read_up_to_its_share_of_the_limit(tmp_path):
    write_csv(tmp_path)
    with pytest.raises(DataError, match=r"at most 20 bytes are read"):
        images.images(str(tmp_path), size=8, max_bytes=64 * 20)


TEXT = st.text(st.sampled_from('filename,label\n\r"ab0./\\\0é'), max_size=60)


@given(text=TEXT | TEXT.map("filename,label\n{}".format))
def test_any_csv_file_is_read_or_raises_an_error_of_gradhomog(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "train.csv").write_text(text, encoding="utf-8")
    with contextlib.suppress(GradhomogError):
        images.images(str(folder), size=8)
