import hashlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from gradhomog import DataError
from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog_data.domains import _render, glyphs

SMALL = {"size": 16, "instances": 6}  # tifinagh: few classes, two faces


def pictures(domain, split):
    """Every picture of a split, by class: [classes, instances, size, size], 0..255."""
    source = domain._cued if split == "train" else domain._plain
    size = source.input_shape[1]
    stack = source._images.reshape(len(source.class_names), -1, size, size).astype(int)
    return stack[source.classes(split)]


def accuracy(domain, split, feature, *, shots=5, tasks=60):
    """Accuracy of the nearest centroid, 5-way, in percent."""
    stream = EpisodeStream([domain], split=split, ways=5, shots=shots, queries=15, tasks=1, setting="weak", seed=0)
    right = []
    for index in range(tasks):
        task = stream.task(index)
        support = feature(task.support_x).reshape(5, shots, -1).mean(1)
        right.append((torch.cdist(feature(task.query_x), support).argmin(1) == task.query_y).float().mean().item())
    return 100 * float(np.mean(right))


def pooled(x):
    return torch.nn.functional.adaptive_avg_pool2d(x, 8).flatten(1)


def spectrum(x):
    """Amplitude spectrum, independent of positions; it depends on the texture more than on the glyph."""
    return torch.fft.rfft2(x[:, 0] - x[:, 0].mean((1, 2), keepdim=True)).abs().flatten(1)


@pytest.mark.slow
@pytest.mark.parametrize("variant", glyphs.SCRIPTS)
def test_every_split_of_every_script_has_five_classes(variant):
    chosen = glyphs.select(variant)
    assert len(chosen) >= 20
    assert all(len(glyph.faces) >= 2 for glyph in chosen)
    names = [glyph.class_name for glyph in chosen]
    assert len(set(names)) == len(names)
    split = glyphs.split_classes(names)
    assert min(split.count(part) for part in ("train", "val", "test")) >= 5


@pytest.mark.slow
def test_no_two_classes_look_the_same():
    """Small letters shaped like their capitals are omitted, and Greek letters shaped like Latin ones."""
    latin = {glyph.character for glyph in glyphs.select("latin")}
    assert {"C", "O", "S", "X", "a", "e", "Q"} <= latin
    assert not latin & set("cosx")
    assert not {glyph.character for glyph in glyphs.select("greek")} & set("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο")
    assert not {glyph.character for glyph in glyphs.select("cyrillic")} & set("АВЕМНОРСТХГ")
    clean = glyphs.glyphs("geometric", background=0.0, **SMALL)
    flat = pictures(clean, "all").reshape(-1, 16 * 16)
    assert len(np.unique(flat, axis=0)) == len(flat)


@pytest.mark.slow
def test_without_background_glyphs_are_bright_on_black_and_centred(tmp_path):
    stack = pictures(glyphs.glyphs("greek", background=0.0), "all")
    assert np.all(stack.max(axis=(2, 3)) >= 0.6 * 255)
    assert np.all(np.median(stack, axis=(2, 3)) <= 40)
    where = np.arange(28) + 0.5
    mass = stack.sum(axis=(2, 3))
    row = (stack.sum(axis=3) * where).sum(axis=2) / mass
    column = (stack.sum(axis=2) * where).sum(axis=2) / mass
    assert abs(row.mean() - 14) < 0.7
    assert abs(column.mean() - 14) < 0.7
    assert max(np.abs(row - 14).max(), np.abs(column - 14).max()) < 7


@pytest.mark.slow
def test_ink_is_brighter_than_the_strongest_background():
    stack = pictures(glyphs.glyphs("greek", background=1.0), "all")
    assert np.all(stack.max(axis=(2, 3)) > 0.65 * 255)


def test_tasks_are_above_chance_and_not_trivial(greek):
    """Measured 77 and 52 by nearest centroid on pooled pixels; chance is 20."""
    assert 55 < accuracy(greek, "test", pooled) < 92
    assert 35 < accuracy(greek, "test", pooled, shots=1) < 75


@pytest.mark.slow
def test_the_background_cue_helps_in_training_and_is_useless_in_test():
    """Measured 98 in train and 32 in test; without the cue 34 in train."""
    cued = glyphs.glyphs("georgian", background=1.0, correlation=1.0)
    blind = glyphs.glyphs("georgian", background=1.0, correlation=0.0)
    assert accuracy(cued, "train", spectrum) > 90
    for split in ("val", "test", "all"):
        assert accuracy(cued, split, spectrum) < 45
    assert accuracy(blind, "train", spectrum) < 45


@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
def test_a_picture_has_its_class_texture_with_the_given_probability(correlation):
    own = np.repeat(np.arange(10), 2000)
    chosen = _render.assign(np.random.default_rng(0), own, correlation=correlation)
    expected = correlation + (1 - correlation) / len(_render.BANK)
    assert abs((chosen == own).mean() - expected) < 0.01
    assert set(chosen[own == 0]) == ({0} if correlation == 1 else set(range(len(_render.BANK))))


def test_the_glyphs_do_not_change_with_background_or_correlation():
    """Only pixels outside the ink may change: inside the ink the two pictures agree."""
    clean = pictures(glyphs.glyphs("tifinagh", background=0.0, **SMALL), "all")
    textured = pictures(glyphs.glyphs("tifinagh", background=1.0, correlation=1.0, **SMALL), "all")
    ink = clean >= 0.74 * 255
    assert ink.any(axis=(2, 3)).mean() > 0.9
    assert np.abs(textured - clean)[ink].mean() < 4


@pytest.mark.slow
def test_a_seed_gives_the_same_pixels_in_every_process_and_other_seeds_give_others(tmp_path):
    code = (
        "import hashlib; from gradhomog_data.domains.glyphs import glyphs; "
        "d = glyphs('tifinagh', size=16, instances=6, seed=3); "
        "print(hashlib.sha256(d._cued._images.tobytes() + d._plain._images.tobytes()).hexdigest())"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "other"), "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    digests = []
    for seed in (3, 4):
        domain = glyphs.glyphs("tifinagh", seed=seed, **SMALL)
        digests.append(hashlib.sha256(domain._cued._images.tobytes() + domain._plain._images.tobytes()).hexdigest())
    assert other.stdout.strip() == digests[0] != digests[1]


# the cache


def fingerprint(domain):
    return domain._plain._images.tobytes() + domain._cued._images.tobytes()


def test_the_second_call_reads_the_same_pictures_from_the_cache(cache, monkeypatch):
    first = glyphs.glyphs("tifinagh", **SMALL)
    (file,) = cache.iterdir()
    assert file.name.startswith("glyphs-tifinagh-16-")
    monkeypatch.setattr(glyphs, "select", lambda variant: pytest.fail("rendered again"))
    assert fingerprint(glyphs.glyphs("tifinagh", **SMALL)) == fingerprint(first)


@pytest.mark.parametrize("damage", ["empty", "cut"])
def test_a_damaged_cache_file_is_rendered_again(cache, damage):
    first = glyphs.glyphs("tifinagh", **SMALL)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[: 0 if damage == "empty" else 1000])
    assert fingerprint(glyphs.glyphs("tifinagh", **SMALL)) == fingerprint(first)
    assert len(list(cache.iterdir())) == 1
    with np.load(file) as stored:
        assert set(stored.files) == {"plain", "cued", "class_names"}


def test_every_option_value_has_a_separate_cache_file(cache):
    for change in ({}, {"size": 12}, {"instances": 5}, {"background": 0.1}, {"correlation": 0.1}, {"seed": 1}):
        glyphs.glyphs("tifinagh", **{**SMALL, **change})
    assert len(list(cache.iterdir())) == 6


def test_an_unusable_cache_folder_is_not_fatal(cache):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert len(glyphs.glyphs("tifinagh", **SMALL).class_names) >= 20


# invalid options


@pytest.mark.parametrize("absent", ["matplotlib", "PIL"])
def test_a_missing_package_raises_with_the_extra_to_install(monkeypatch, absent):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    with pytest.raises(DataError, match=r"is not installed\. Install it with: pip install 'gradhomog\[plot\]'"):
        glyphs.glyphs("greek")


@pytest.mark.slow
def test_describing_the_domain_imports_neither_matplotlib_nor_pillow():
    # A process, which has imported nothing before.
    code = (
        "import sys; from gradhomog_data.domains import glyphs, images; glyphs.gradhomog_domain(); "
        "print([m for m in ('matplotlib', 'PIL') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
