"""Every built-in domain passes the conformance kit, with several variants and options."""

import json

import numpy as np
import pytest
from PIL import Image

from gradhomog import available
from gradhomog.testing import check_domain, parametrize_with_checks

BUILT_IN = [
    "glyphs:greek",
    "glyphs:arrows(instances=6, background=0.3)",
    "functions:sinusoid",
    "functions:step",
    "functions:bumps(noise=0.1)",
]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """Set a temporary cache folder, so that no test reads or writes the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.slow
@parametrize_with_checks(BUILT_IN, kind="domains")
def test_built_in_domains_conform(check):
    check()


def write_npz(folder, pictures):
    labels = np.repeat(np.arange(len(pictures)), len(pictures[0]))
    names = np.array([f"class {number}" for number in range(len(pictures))])
    np.savez(folder / "birds.npz", images=np.concatenate(pictures), labels=labels, class_names=names)
    return folder / "birds.npz"


def write_folders(folder, pictures):
    """Write image folders with an official split that has no validation classes."""
    for number, class_pictures in enumerate(pictures):
        class_folder = folder / "birds" / ("train" if number < 8 else "test") / f"class {number}"
        class_folder.mkdir(parents=True)
        for index, picture in enumerate(class_pictures):
            Image.fromarray(picture).save(class_folder / f"{index}.png")
    return folder / "birds"


def write_json_lists(folder, pictures):
    root = write_folders(folder, pictures)
    files = sorted(root.glob("*/*/*.png"))
    labels = [int(file.parent.name.split()[1]) for file in files]
    names = [f"class {number}" for number in range(len(pictures))]
    text = {"label_names": names, "image_names": [str(file) for file in files], "image_labels": labels}
    (folder / "birds.json").write_text(json.dumps(text), encoding="utf-8")
    return folder / "birds.json"


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_npz, write_folders, write_json_lists])
def test_image_files_conform(write, tmp_path):
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (6, 24, 30, 3), dtype=np.uint8) for _ in range(16)]
    report = check_domain(f"images:{write(tmp_path, pictures)}")
    assert report.passed, str(report)
    skipped = {result.check for result in report if result.outcome == "not applicable"}
    assert skipped == {"listed_variants_work", "unknown_variant_rejected"}


def test_every_built_in_domain_is_tested():
    assert {text.partition(":")[0] for text in BUILT_IN} | {"images"} == set(available("domains"))
