"""Published folders are listed with the published split rule, and the lists are read by the domain `images`."""

import hashlib
import json
import os
import shutil

import pytest

import gradhomog
from gradhomog import ConfigError, DataError
from gradhomog.cli import main
from gradhomog_data.benchmarks import BENCHMARKS, find_benchmark, folders
from gradhomog_data.benchmarks.folders import list_source
from tests.data.benchmarks.trees import JPEG

SPLITS = ("base", "val", "novel")


def listed(root, name):
    return list_source(root, BENCHMARKS[name])


def write(root, name):
    folder = root / "filelists" / name
    assert main(["data", "lists", str(root), name]) == 0
    return folder, json.loads((folder / "manifest.json").read_text())


def find(root, name, size):
    return folders.find(root, find_benchmark(name), size)


def class_names(listing, split):
    return [name for name in listing.classes if listing.splits[name] == split]


def test_even_classes_are_base_and_odd_ones_val_and_novel_in_turn(published):
    listing = listed(published("cub"), "cub")
    names = sorted(path.name for path in (published("cub") / "CUB_200_2011" / "images").iterdir())
    assert list(listing.classes) == names
    assert class_names(listing, "base") == names[::2]
    assert class_names(listing, "val") == names[1::4]
    assert class_names(listing, "novel") == names[3::4]


def test_the_published_numbers_of_classes_of_each_split():
    """Table of Tseng et al. 2020, arXiv:2001.08735."""
    expected = {"cub": (100, 50, 50), "cars": (98, 49, 49), "places": (183, 91, 91), "plantae": (100, 50, 50)}
    for name, counts in expected.items():
        assert tuple(BENCHMARKS[name].splits.values()) == counts
    assert tuple(BENCHMARKS["miniimagenet"].splits.values()) == (64, 16, 20)


def test_the_first_200_images_of_a_place_are_listed(published):
    listing = listed(published("places"), "places")
    assert listing.classes["place_000"] == [f"place_000/{index:08}.jpg" for index in range(200)]


def test_the_species_with_most_images_are_listed_and_at_most_600_images_of_each(published):
    listing = listed(published("plantae"), "plantae")
    # Species 0 and 1 have as many images as 2 to 49, and come first by name.
    assert list(listing.classes) == [f"{number:04}" for number in range(2, 202)]
    assert len(set(listing.classes["0201"])) == 600
    assert listing.classes["0201"] != [f"0201/{index:04}.jpg" for index in range(600)]


def test_the_class_of_an_isic_image_is_the_column_with_one(published):
    listing = listed(published("isic"), "isic")
    assert list(listing.classes) == list(BENCHMARKS["isic"].class_names)
    assert listing.classes["NV"] == ["ISIC_0024307.jpg", "ISIC_0024314.jpg", "ISIC_0024321.jpg"]


def test_only_images_with_one_of_seven_findings_are_listed(published):
    listing = listed(published("chestx"), "chestx")
    assert list(listing.classes) == list(BENCHMARKS["chestx"].class_names)
    assert listing.classes["Mass"] == [f"images/{number:08}_000.png" for number in (4, 15, 26)]
    assert sum(map(len, listing.classes.values())) == 21


def test_the_numbered_folders_of_chestx_are_searched(changeable):
    root = changeable("chestx")
    (root / "chestx" / "images_001" / "images").mkdir(parents=True)
    (root / "chestx" / "images_002").mkdir()
    images = sorted((root / "chestx" / "images").iterdir())
    for index, image in enumerate(images):
        image.rename(root / "chestx" / ("images_001/images" if index % 2 else "images_002") / image.name)
    assert listed(root, "chestx").classes["Mass"][:2] == [
        "images_002/00000004_000.png",
        "images_001/images/00000015_000.png",
    ]


@pytest.mark.parametrize("name", ["cub", "eurosat", "isic", "miniimagenet"])
def test_lists_are_read_with_their_split_also_after_the_root_is_moved(changeable, tmp_path, name):
    root = changeable(name)
    write(root, name)
    moved = root.rename(tmp_path / "moved")
    path = find(moved, name, 8)
    assert path == moved / "filelists" / name
    domain = gradhomog.domain(str(path), size=8)
    counts = [domain.class_split.count(split) for split in ("train", "val", "test")]
    assert counts == list(BENCHMARKS[name].splits.values())


def test_lists_have_the_format_of_published_code_and_the_manifest_their_digests(changeable):
    folder, manifest = write(changeable("cub"), "cub")
    contents = {split: json.loads((folder / f"{split}.json").read_text()) for split in SPLITS}
    for split, content in contents.items():
        assert list(content) == ["label_names", "image_names", "image_labels"]
        assert content["label_names"] == contents["base"]["label_names"]
        for image, label in zip(content["image_names"], content["image_labels"], strict=True):
            assert image.split("/")[-2] == content["label_names"][label]
            assert os.path.isfile(folder / image)
        digest = hashlib.sha256((folder / f"{split}.json").read_bytes()).hexdigest()
        assert manifest["sha256"][f"{split}.json"] == digest
    assert json.loads((folder / "manifest.json").read_text()) == manifest
    assert manifest["splits"]["val"] == {"classes": 50, "images": 100}
    assert manifest["images"] == 400


def test_lists_are_the_same_bytes_on_every_machine(changeable):
    """The digest depends on names, order, split rule and, for Plantae, on the seed; all are pinned here."""
    _, manifest = write(changeable("plantae"), "plantae")
    assert manifest["seed"] == 0
    assert manifest["sha256"]["novel.json"][:16] == PINNED


PINNED = "269792caa0c96eb0"


def test_lists_in_a_folder_behind_a_symbolic_link_are_relative_to_the_real_folder(changeable, tmp_path):
    root, real = changeable("eurosat"), tmp_path / "elsewhere" / "deep" / "lists"
    real.mkdir(parents=True)
    (root / "filelists").symlink_to(real)
    folder, _ = write(root, "eurosat")
    assert gradhomog.domain(str(folder), size=8).class_split == ("test",) * 10


def test_forms_are_found_in_the_documented_order(changeable):
    root = changeable("eurosat")
    with pytest.raises(DataError, match=r"2750: EuroSAT has no file lists .*gradhomog data lists .* eurosat --out"):
        find(root, "eurosat", 84)
    shutil.copytree(root / "2750", root / "eurosat")
    shutil.rmtree(root / "2750")
    expected = [root / "eurosat"]
    (root / "filelists" / "EuroSAT").mkdir(parents=True)  # the spelling of published lists
    for place in ("filelists/EuroSAT/novel.json", "eurosat.npz", "eurosat-84.npz"):
        (root / place).touch()
        expected.append(root / "filelists" / "EuroSAT" if "novel" in place else root / place)
    assert find(root, "eurosat", 84) == expected[3]
    assert find(root, "eurosat", 32) == expected[2]
    expected[2].unlink()
    assert find(root, "eurosat", 32) == expected[1]
    shutil.rmtree(expected[1])
    assert find(root, "eurosat", 32) == expected[0]
    shutil.rmtree(expected[0])
    for name in ("eurosat-28.npz", "eurosat-224.npz", "eurosat-old.npz"):  # the largest of other sizes
        (root / name).touch()
    assert find(root, "eurosat", 32) == root / "eurosat-224.npz"
    assert find(root, "cub", 32) is None
    assert find(root / "nowhere", "cub", 32) is None
    with pytest.raises(ConfigError, match=r"unknown benchmark 'eurosta'\. Did you mean 'eurosat'\?"):
        find(root, "eurosta", 32)


@pytest.mark.parametrize("name", ["cub", "places", "plantae", "eurosat", "miniimagenet"])
def test_class_folders_with_the_name_of_the_benchmark_are_listed_as_published_ones(changeable, name):
    root = changeable(name)
    published = listed(root, name)
    published.folder.rename(root / name)
    for path in root.iterdir():
        if path.name != name:
            shutil.rmtree(path)
    renamed = listed(root, name)
    assert renamed.folder == root / name
    assert (renamed.classes, renamed.splits) == (published.classes, published.splits)


@pytest.mark.parametrize("name", ["isic", "chestx"])
def test_images_that_were_sorted_into_class_folders_are_listed(tmp_path, name):
    for number in range(7):
        (tmp_path / name / f"class {number}").mkdir(parents=True)
        (tmp_path / name / f"class {number}" / "a.jpg").write_bytes(JPEG)
    assert find(tmp_path, name, 84) == tmp_path / name
    assert listed(tmp_path, name).classes["class 3"] == ["class 3/a.jpg"]


# damaged downloads


def remove_class(root):
    shutil.rmtree(root / "CUB_200_2011" / "images" / "007.Bird_7")


def empty_class(root):
    for path in (root / "2750" / "Land3").iterdir():
        path.unlink()


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


ISIC_TABLE = "ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv"

DAMAGES = {
    "a class is missing": ("cub", remove_class, r"images: CUB-200-2011 has 200 classes; found 199\. .*Expected: CUB"),
    "a class is empty": ("eurosat", empty_class, r"2750: class 'Land3' has no images \(1 of 10"),
    "missing table": (
        "isic", lambda root: (root / ISIC_TABLE).unlink(), r"Training_GroundTruth\.csv: there is no such file"),
    "column missing": (
        "isic", lambda root: edit(root / ISIC_TABLE, "BCC", "BBC"), r"must have the columns .*; missing: BCC; found: "),
    "two classes in a row": (
        "isic", lambda root: edit(root / ISIC_TABLE, "ISIC_0024306,1.0,0.0", "ISIC_0024306,1.0,1.0"),
        r"row 2, 'ISIC_0024306', must have one class; found 2"),
    "picture missing": (
        "isic", lambda root: (root / "ISIC2018_Task3_Training_Input" / "ISIC_0024307.jpg").unlink(),
        r"1 of the 21 listed images are not in .*Training_Input, the first is ISIC_0024307\.jpg.*incomplete"),
    "row twice": (
        "isic", lambda root: edit(root / ISIC_TABLE, "ISIC_0024308", "ISIC_0024315"), "an image occurs in two rows"),
    "web page as table": (
        "chestx", lambda root: (root / "chestx/Data_Entry_2017.csv").write_text("<!DOCTYPE html><p>403"),
        r"Data_Entry_2017\.csv: is a web page, not a CSV file"),
    "table of another encoding": (
        "chestx", lambda root: (root / "chestx/Data_Entry_2017.csv").write_bytes("Größe".encode("latin-1")),
        "must be UTF-8 text; byte 2 is 0xf6"),
    "table cut off": (
        "chestx", lambda root: edit(root / "chestx/Data_Entry_2017.csv", "Hernia,0\n00000011_000.png,A", "Hernia,0\nA"),
        r"row 13 has 2 values for 3 columns; the file may be cut off"),
    "wrong split folders": (
        "miniimagenet", lambda root: shutil.rmtree(root / "mini_imagenet_full_size/val/n00000064"),
        r"val: miniImageNet has 16 classes in this split; found 15"),
    "class in two splits": (
        "miniimagenet", lambda root: (root / "mini_imagenet_full_size/val/n00000064").rename(
            root / "mini_imagenet_full_size/val/n00000003"),
        "class 'n00000003' is also in another split"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_download_raises_with_file_expected_and_found(changeable, name, damage, message):
    root = changeable(name)
    damage(root)
    with pytest.raises(DataError, match=message) as caught:
        listed(root, name)
    assert str(root) in str(caught.value)


def test_names_that_are_not_ascii_are_listed_and_read(tmp_path):
    for number in range(10):
        folder = tmp_path / "2750" / f"Fläche {number} 森"
        folder.mkdir(parents=True)
        (folder / "é.jpg").write_bytes(JPEG)
    write(tmp_path, "eurosat")
    domain = gradhomog.domain(str(find(tmp_path, "eurosat", 8)), size=8)
    assert domain.class_names[0] == "Fläche 0 森"
