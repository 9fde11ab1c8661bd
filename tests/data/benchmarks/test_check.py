"""Checks of benchmarks on disk: counts, splits, damage; through the command line."""

import dataclasses
import io
import json
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from gradhomog.cli import main
from gradhomog.experiments.reproduce.paper_schema import installed_experiments
from gradhomog_data.benchmarks import BENCHMARKS, MULTI_TASK
from gradhomog_data.benchmarks.files_check import check
from tests.data.benchmarks.trees import JPEG, TREES


def run(capsys, *arguments):
    code = main(["data", *map(str, arguments)])
    return code, capsys.readouterr()


def checked(root, name, images=None, **options):
    """Check with another published number of images; the trees of these tests have few."""
    return check(root, dataclasses.replace(BENCHMARKS[name], images=images), **options)


@pytest.mark.parametrize("name", TREES)
def test_published_folders_and_lists_have_no_problems(changeable, capsys, name):
    root = changeable(name)
    first = checked(root, name)
    assert (first.status, first.form, first.problems) == ("complete", "published folders", [])
    assert bool(first.advice) == (name != "miniimagenet")  # whose folders include the split
    assert run(capsys, "lists", root, name)[0] == 0
    second = checked(root, name, full=True)
    assert (second.status, second.form, second.problems, second.advice) == ("complete", "file lists", [], "")
    assert second.splits == first.splits
    assert second.images == first.images
    assert {split: count["classes"] for split, count in second.splits.items()} == BENCHMARKS[name].splits


def test_digests_do_not_depend_on_the_place_of_the_data(changeable, tmp_path, capsys):
    root = changeable("cub")
    run(capsys, "lists", root)
    before = [checked(root, "cub").sha256]
    moved = root.rename(tmp_path / "moved")
    assert [checked(moved, "cub").sha256] == before
    (moved / "CUB_200_2011/images/001.Bird_1/a.jpg").rename(moved / "CUB_200_2011/images/001.Bird_1/c.jpg")
    shutil.rmtree(moved / "filelists")
    other = checked(moved, "cub").sha256
    run(capsys, "lists", moved)
    assert checked(moved, "cub").sha256 not in (*before, other)


def test_fewer_images_than_published_are_a_difference(published):
    result = checked(published("eurosat"), "eurosat", images=31)
    assert (result.status, result.problems) == ("incomplete", [])
    assert result.differences == ["30 of 31 images"]
    assert checked(published("eurosat"), "eurosat", images=30).status == "complete"


@pytest.mark.parametrize(
    ("classes", "change", "differences"),
    [
        (400, {}, ["400 classes, published: 200", "800 of 11,788 images"]),
        (7, {"class_names": np.array(["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"])}, []),
        (7, {"class_names": np.array(["cat", "BCC", "BKL", "DF", "MEL", "NV", "dog"])}, ["unknown classes: cat, dog"]),
    ],
)
def test_more_classes_than_published_or_unknown_names_show_other_data(tmp_path, classes, change, differences):
    name = "cub" if classes == 400 else "isic"
    np.savez(tmp_path / f"{name}.npz", **arrays(classes, **change))
    result = checked(tmp_path, name, images=11_788 if name == "cub" else None)
    assert (result.status, result.differences) == ("other data" if differences else "complete", differences)


DAMAGED_PICTURES = {
    "empty": (b"", "an empty file"),
    "web page": (b"<!DOCTYPE html><title>404", "a web page, probably the error page of a download"),
    "other": (b"no picture", "cannot identify image file"),
}


@pytest.mark.parametrize(("content", "reason"), DAMAGED_PICTURES.values(), ids=DAMAGED_PICTURES.keys())
def test_a_damaged_picture_is_reported_with_its_path(changeable, content, reason):
    root = changeable("eurosat")
    path = root / "2750" / "Land4" / "Land4_2.jpg"
    path.write_bytes(content)
    result = checked(root, "eurosat")
    assert result.status == "damaged"
    assert len(result.problems) == 1
    assert str(path) in result.problems[0]
    assert reason in result.problems[0]


def test_a_truncated_picture_is_found_by_decoding(changeable):
    root = changeable("eurosat")
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "JPEG")
    (root / "2750" / "Land4" / "Land4_2.jpg").write_bytes(file.getvalue()[:-500])
    assert checked(root, "eurosat").problems == []
    (problem,) = checked(root, "eurosat", full=True).problems
    assert "Land4_2.jpg: cannot be read as a picture" in problem


def test_many_damaged_pictures_are_counted(changeable):
    root = changeable("eurosat")
    for path in (root / "2750" / "Land4").iterdir():
        path.write_bytes(b"")
    for path in (root / "2750" / "Land5").iterdir():
        path.write_bytes(b"")
    problems = checked(root, "eurosat").problems
    assert len(problems) == 6
    assert problems[-1] == "1 more images cannot be read, 6 of 30."


def test_a_list_that_was_changed_or_cut_off_differs_from_its_manifest(changeable, capsys):
    root = changeable("cub")
    run(capsys, "lists", root)
    path = root / "filelists" / "cub" / "val.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "image_names": content["image_names"][::-1]}))
    assert any("val.json: differs from the manifest" in problem for problem in checked(root, "cub").problems)
    path.write_text(path.read_text()[:500])
    (problem,) = checked(root, "cub").problems
    assert "val.json: is not valid JSON" in problem
    path.unlink()
    problems = checked(root, "cub").problems
    assert "val.json: differs from the manifest" in problems[0]
    assert checked(root, "cub").differences == ["150 of 200 classes"]
    (path.parent / "manifest.json").write_text("[")
    assert any("manifest.json: is damaged" in problem for problem in checked(root, "cub").problems)


def test_class_folders_without_the_published_split_are_reported_with_the_command(changeable):
    root = changeable("cub")
    (root / "CUB_200_2011" / "images").rename(root / "cub")
    shutil.rmtree(root / "CUB_200_2011")
    result = checked(root, "cub")
    assert (result.status, result.form) == ("complete", "class folders")
    assert "split by name, not by the published rule" in result.advice
    assert "gradhomog data lists" in result.advice
    assert main(["data", "lists", str(root), "cub"]) == 0
    assert checked(root, "cub").splits["base"]["classes"] == 100


def arrays(classes, per_class=2, **change):
    content = {
        "images": np.zeros((classes * per_class, 8, 8, 3), dtype=np.uint8),
        "labels": np.repeat(np.arange(classes), per_class),
        "class_names": np.array([f"class {index}" for index in range(classes)]),
    }
    return {**content, **change}


def test_arrays_are_counted_and_their_damage_is_reported(tmp_path):
    np.savez(tmp_path / "isic-84.npz", **arrays(7))
    result = checked(tmp_path, "isic", full=True)
    assert (result.status, result.form, result.classes, result.images) == ("complete", "arrays", 7, 14)
    np.savez(tmp_path / "isic-84.npz", **arrays(7, labels=np.repeat(np.arange(7), 2) + 1))
    assert "`labels` must be in 0..6" in checked(tmp_path, "isic").problems[0]
    np.savez(tmp_path / "isic-84.npz", **arrays(6))
    assert checked(tmp_path, "isic").differences == ["6 of 7 classes"]
    path = tmp_path / "isic-84.npz"
    path.write_bytes(path.read_bytes()[:300])
    assert "is not an .npz file, or its end is cut off" in checked(tmp_path, "isic").problems[0]
    np.savez(tmp_path / "cub.npz", **arrays(200, class_split=np.array(["train"] * 150 + ["val"] * 20 + ["test"] * 30)))
    assert checked(tmp_path, "cub").differences == [
        "splits of base 150, val 20, novel 30 classes, published: base 100, val 50, novel 50"
    ]


def test_an_archive_that_is_not_unpacked_is_reported(tmp_path):
    archive = tmp_path / "EuroSAT.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("2750/a.jpg", JPEG)
    result = checked(tmp_path, "eurosat")
    assert (result.status, result.advice) == ("missing", f"Unpack {archive} below {tmp_path}.")
    whole = archive.read_bytes()
    damages = {whole[:-30]: "is not an archive, or is damaged", b"<html>": "a web page", b"": "an empty file"}
    for content, reason in damages.items():
        archive.write_bytes(content)
        result = checked(tmp_path, "eurosat")
        assert result.status == "damaged"
        assert reason in result.problems[0]


# command line


def test_the_list_has_source_terms_and_folders_of_every_benchmark(capsys):
    code, out = run(capsys, "list")
    assert code == 0
    code, data = run(capsys, "list", "--json")
    records = {record["name"]: record for record in json.loads(data.out)}
    assert list(records) == [*sorted(BENCHMARKS), *sorted(MULTI_TASK)]
    assert (
        {"nyuv2", "cityscapes", "celeba", "qm9", "office-home"} == MULTI_TASK.keys() <= installed_experiments().keys()
    )
    for name, record in records.items():
        for key in ("source", "terms", "layout", "contents" if name in MULTI_TASK else "order"):
            assert record[key] in out.out


def test_exit_codes_of_checks(published, changeable, tmp_path, capsys):
    code, out = run(capsys, "check", published("eurosat"))
    assert code == 1  # 30 of 27,000 images
    assert "eurosat: 30 of 27,000 images" in out.out
    assert "isic: Obtain it from challenge.isic-archive.com" in out.out
    (tmp_path / "nothing").mkdir()
    np.savez(tmp_path / "nothing" / "cub2011-32.npz", **arrays(10))  # of another name
    code, out = run(capsys, "check", tmp_path / "nothing")
    assert code == 0
    assert "Recognized below ROOT: NAME-SIZE.npz, NAME.npz" in out.out
    assert "--domain NAME=PATH" in out.out
    assert run(capsys, "check", tmp_path / "nothing", "cub")[0] == 1
    code, out = run(capsys, "check", tmp_path / "nothing", "birds")
    assert code == 2
    assert "unknown benchmark 'birds'" in out.err
    code, out = run(capsys, "check", tmp_path / "nowhere")
    assert code == 2
    assert "there is no such folder" in out.err
    code, out = run(capsys, "check", published("plantae"), "plantae", "--json")
    (record,) = json.loads(out.out)
    assert code == 0  # no number of images is published
    assert (record["status"], record["classes"], record["published_images"]) == ("complete", 200, None)
    assert len(record["sha256"]) == 64


def test_lists_are_written_for_all_benchmarks_that_exist_and_damage_of_one_does_not_stop_the_others(
    changeable, tmp_path, capsys
):
    root = changeable("eurosat")
    TREES["isic"](root)
    (root / "ISIC2018_Task3_Training_Input" / "ISIC_0024306.jpg").unlink()
    code, out = run(capsys, "lists", root, "--out", tmp_path / "lists", "--json")
    assert code == 1
    assert "1 of the 21 listed images are not in" in out.err
    (manifest,) = json.loads(out.out)
    assert manifest["benchmark"] == "eurosat"
    assert sorted(path.name for path in (tmp_path / "lists" / "eurosat").iterdir()) == ["manifest.json", "novel.json"]
    code, out = run(capsys, "lists", root, "cub")
    assert code == 1
    assert "CUB-200-2011 has no pictures here; expected CUB_200_2011/images/<class>/*.jpg" in out.err
    (tmp_path / "nothing").mkdir()
    code, out = run(capsys, "lists", tmp_path / "nothing")
    assert code == 2
    assert "contains none of the benchmarks" in out.err
