"""The nine few-shot benchmarks: where they are obtained, their terms, folders, counts and split rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradhomog.errors import OptionError, did_you_mean

Rule = Literal["folders", "modulo", "novel"]

RULES: dict[Rule, str] = {
    "folders": "by the folders train, val and test",
    "modulo": "class i: base if i % 2 = 0, val if i % 4 = 1, novel if i % 4 = 3",
    "novel": "all classes novel",
}
"""Split rules, with classes numbered from 0 in the order of the benchmark."""


@dataclass(frozen=True)
class Benchmark:
    """A published few-shot benchmark of images.

    Attributes:
        name: name in commands, file names and folder names.
        title: name in publications.
        source: place where the data are obtained.
        terms: terms of use, as their publishers state them.
        layout: files below the data root after unpacking, for humans.
        folders: where the pictures lie, relative to the data root or to a folder named after the benchmark.
        own_folders: further places, only below a folder named after the benchmark.
        archives: names of the archives, to find one that is not unpacked.
        classes: number of classes.
        images: number of images; None if no number is published.
        rule: split rule of the classes.
        order: order of the classes, from which the rule counts.
        class_names: published names of the classes, if there are few; empty otherwise.
    """

    name: str
    title: str
    source: str
    terms: str
    layout: str
    folders: tuple[str, ...]
    classes: int
    images: int | None
    rule: Rule
    order: str = "class folders by name"
    own_folders: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def splits(self) -> dict[str, int]:
        """Published number of classes of each split."""
        if self.rule == "folders":
            return {"base": 64, "val": 16, "novel": 20}
        if self.rule == "novel":
            return {"base": 0, "val": 0, "novel": self.classes}
        numbers = range(self.classes)
        return {"base": len(numbers[::2]), "val": len(numbers[1::4]), "novel": len(numbers[3::4])}


def split_of(rule: Rule, index: int) -> str:
    """Return the split of the class of this number, for rules that depend on the number alone.

    >>> [split_of("modulo", index) for index in range(5)]
    ['base', 'val', 'base', 'novel', 'base']
    """
    if rule == "novel":
        return "novel"
    return "base" if index % 2 == 0 else "val" if index % 4 == 1 else "novel"


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="miniimagenet",
            title="miniImageNet",
            source="pickles: zenodo.org/records/7978538; pictures: from ImageNet (image-net.org), with the lists of "
            "Ravi and Larochelle 2017",
            terms="ImageNet: research and education only, no redistribution",
            layout="miniimagenet/{train,val,test}/<class>/*.jpg, "
            "or mini_imagenet_full_size/{train,val,test}/<class>/*.jpg, or "
            "miniimagenet/mini-imagenet-cache-{train,val,test}.pkl",
            folders=("mini_imagenet_full_size",),
            archives=("mini_imagenet_full_size.tar.bz2", "mini-imagenet.zip", "mini-imagenet.tar.gz"),
            classes=100,
            images=60_000,
            rule="folders",
        ),
        Benchmark(
            name="cub",
            title="CUB-200-2011",
            source="www.vision.caltech.edu/datasets/cub_200_2011",
            terms="research and education only, no commercial use",
            layout="CUB_200_2011/images/<class>/*.jpg",
            folders=("CUB_200_2011/images",),
            archives=("CUB_200_2011.tgz", "CUB_200_2011.tar.gz"),
            classes=200,
            images=11_788,
            rule="modulo",
        ),
        Benchmark(
            name="cars",
            title="Stanford Cars",
            source="ai.stanford.edu/~jkrause/cars/car_dataset.html; its archives are no longer served, copies exist",
            terms="research and education only, no commercial use",
            layout="cars_train/*.jpg with devkit/cars_train_annos.mat and devkit/cars_meta.mat, or "
            "cars_train/<class>/*.jpg",
            folders=("cars_train",),
            archives=("cars_train.tgz", "car_devkit.tgz", "car_ims.tgz"),
            classes=196,
            images=8_144,
            rule="modulo",
            order="cars_meta.mat, or class folders by name",
        ),
        Benchmark(
            name="places",
            title="Places365",
            source="places2.csail.mit.edu/download.html (small images, train and val)",
            terms="research and education only, no commercial use",
            layout="places365_standard/train/<class>/*.jpg; the first 200 images of each class by name",
            folders=("places365_standard/train",),
            archives=("places365standard_easyformat.tar", "places365_standard.tar"),
            classes=365,
            images=73_000,
            rule="modulo",
        ),
        Benchmark(
            name="plantae",
            title="Plantae (iNaturalist 2018)",
            source="github.com/visipedia/inat_comp (2018, training and validation images)",
            terms="research and education only, no commercial use; each photograph has its own licence",
            layout="Plantae/<species>/*.jpg; the 200 species with most images, at most 600 images of each, drawn with "
            "seed 0",
            folders=("Plantae", "train_val2018/Plantae"),
            archives=("Plantae.tar.gz", "train_val2018.tar.gz"),
            classes=200,
            images=None,
            rule="modulo",
            order="species by number of images, fewest first, then by name",
        ),
        Benchmark(
            name="cropdiseases",
            title="CropDiseases (PlantVillage)",
            source="www.kaggle.com/saroz014/plant-disease",
            terms="PlantVillage: CC BY-SA 3.0; copies may state other terms",
            layout="cropdiseases/dataset/train/<class>/*.jpg",
            folders=(),
            own_folders=("dataset/train", "train"),
            archives=("plant-disease.zip",),
            classes=38,
            images=43_456,
            rule="novel",
        ),
        Benchmark(
            name="eurosat",
            title="EuroSAT",
            source="github.com/phelber/EuroSAT (RGB)",
            terms="MIT; Copernicus Sentinel data, to be attributed",
            layout="2750/<class>/*.jpg",
            folders=("2750", "EuroSAT/2750", "EuroSAT_RGB"),
            archives=("EuroSAT.zip", "EuroSAT_RGB.zip"),
            classes=10,
            images=27_000,
            rule="novel",
            class_names=(
                "AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial", "Pasture", "PermanentCrop",
                "Residential", "River", "SeaLake",
            ),
        ),
        Benchmark(
            name="isic",
            title="ISIC 2018, task 3 (HAM10000)",
            source="challenge.isic-archive.com/data (2018, task 3, training)",
            terms="CC BY-NC 4.0",
            layout="ISIC2018_Task3_Training_Input/<image>.jpg with "
            "ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv",
            folders=("ISIC2018_Task3_Training_Input",),
            archives=("ISIC2018_Task3_Training_Input.zip", "ISIC2018_Task3_Training_GroundTruth.zip"),
            classes=7,
            images=10_015,
            rule="novel",
            order="columns of the table",
            class_names=("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"),
        ),
        Benchmark(
            name="chestx",
            title="ChestX-ray8",
            source="nihcc.app.box.com/v/ChestXray-NIHCC, or www.kaggle.com/nih-chest-xrays/data",
            terms="free use with attribution to the NIH Clinical Center",
            layout="chestx/Data_Entry_2017.csv with chestx/images/*.png or chestx/images_*/images/*.png",
            folders=("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv"),
            archives=("images_001.tar.gz", "images_01.tar.gz"),
            classes=7,
            images=25_847,
            rule="novel",
            order="by name",
            class_names=(  # the findings of the benchmark of Guo et al. 2020, arXiv:1912.07200
                "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumothorax",
            ),
        ),
    )
}  # fmt: skip
"""The benchmarks by name, in the order of tables."""


def get(name: str) -> Benchmark:
    """Return a benchmark by its name.

    Raises:
        OptionError: there is no benchmark of this name.
    """
    if name not in BENCHMARKS:
        raise OptionError(
            f"unknown benchmark {name!r}.{did_you_mean(name, list(BENCHMARKS))} Benchmarks: {', '.join(BENCHMARKS)}."
        )
    return BENCHMARKS[name]
