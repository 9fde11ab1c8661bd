"""The published folders of each benchmark, with tiny pictures in the true layout."""

import csv
import io
from collections.abc import Callable, Iterable
from pathlib import Path

from PIL import Image

from gradhomog_data.benchmarks import BENCHMARKS


def picture_bytes(kind: str = "JPEG", grey: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (grey, grey, grey)).save(file, kind)
    return file.getvalue()


JPEG = picture_bytes()


def write_pictures(folder: Path, names: Iterable[str], content: bytes = JPEG) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(content)


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def cub(root: Path) -> None:
    for number in range(1, 201):
        write_pictures(root / "CUB_200_2011" / "images" / f"{number:03}.Bird_{number}", ["b.jpg", "a.jpg"])


def cars(root: Path) -> None:
    for number in range(1, 197):
        write_pictures(root / "cars_train" / f"Make {number:03}", ["00002.jpg", "00001.jpg"])


def places(root: Path) -> None:
    for number in range(365):
        count = 203 if number == 0 else 1
        write_pictures(
            root / "places365_standard" / "train" / f"place_{number:03}", [f"{i:08}.jpg" for i in range(count)]
        )


def plantae(root: Path) -> None:
    """Species k of 202 has 1 + k // 50 images; the last one 605."""
    for number in range(202):
        count = 605 if number == 201 else 1 + number // 50
        write_pictures(root / "Plantae" / f"{number:04}", [f"{i:04}.jpg" for i in range(count)])


def cropdiseases(root: Path) -> None:
    for part, count in (("train", 2), ("test", 1)):
        for number in range(38):
            folder = root / "cropdiseases" / "dataset" / part / f"Crop___disease_{number:02}"
            write_pictures(folder, [f"{i}.JPG" for i in range(count)])


def eurosat(root: Path) -> None:
    for number in range(10):
        write_pictures(root / "2750" / f"Land{number}", [f"Land{number}_{i}.jpg" for i in range(1, 4)])


def isic(root: Path) -> None:
    stem = "ISIC2018_Task3_Training"
    images = [f"ISIC_{24306 + number:07}" for number in range(21)]
    write_pictures(root / f"{stem}_Input", [f"{name}.jpg" for name in images])
    rows = [[name, *(f"{float(column == index % 7)}" for column in range(7))] for index, name in enumerate(images)]
    write_csv(
        root / f"{stem}_GroundTruth" / f"{stem}_GroundTruth.csv", [["image", *BENCHMARKS["isic"].class_names], *rows]
    )


def chestx(root: Path) -> None:
    findings = [*BENCHMARKS["chestx"].class_names, "Pneumonia", "No Finding", "Mass|Nodule", "Hernia"]
    rows = [[f"{index:08}_000.png", findings[index % len(findings)], "0"] for index in range(3 * len(findings))]
    write_pictures(root / "chestx" / "images", [row[0] for row in rows], picture_bytes("PNG"))
    header = ["Image Index", "Finding Labels", "Follow-up #"]
    write_csv(root / "chestx" / "Data_Entry_2017.csv", [header, *rows])


def miniimagenet(root: Path) -> None:
    start = 0
    for split, count in (("train", 64), ("val", 16), ("test", 20)):
        for number in range(start, start + count):
            write_pictures(root / "mini_imagenet_full_size" / split / f"n{number:08}", ["0.JPEG", "1.JPEG"])
        start += count


TREES: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (miniimagenet, cub, cars, places, plantae, cropdiseases, eurosat, isic, chestx)
}
