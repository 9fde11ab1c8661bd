"""Saliency maps are kept, and found again for the right runs."""

from __future__ import annotations

import numpy as np

from gradhomog.experiments.results.saliency_maps import FILE, Looks, collect
from tests.experiments.synthetic import comparison, result, start


def look(seed=0, channels=1, maps=(), attached=False, **more):
    same, own = np.random.default_rng(0), np.random.default_rng(seed)
    shape = (3, channels, 8, 8)
    found = {
        "images": same.uniform(-1, 1, shape).astype(np.float32),
        "domains": ("glyphs:georgian", "cub", "<script>"),
        "probabilities": own.uniform(size=3).astype(np.float32),
        "saliency": own.normal(size=shape).astype(np.float32),
        "maps": {name: own.uniform(size=(3, 4, 4)).astype(np.float32) for name in maps},
        "attached": attached,
    }
    return Looks(**(found | more))


def test_what_was_written_is_read_again(tmp_path):
    for given in (look(maps=("a: b/c", "../é"), attached=True), look(saliency=None)):
        given.write(tmp_path)
        found = Looks.read(tmp_path)
        assert list(tmp_path.iterdir()) == [tmp_path / FILE]
        assert (found.domains, found.attached) == (given.domains, given.attached)
        assert list(found.maps) == list(given.maps)
        for name in given.maps:
            assert (found.maps[name] == given.maps[name]).all()
        for name in ("images", "probabilities", "saliency"):
            assert np.array_equal(getattr(found, name), getattr(given, name))


def test_a_folder_without_looks_has_none(tmp_path):
    assert Looks.read(tmp_path) is None
    assert collect(tmp_path, comparison(["plain"], seeds=1, steps=1)) == {}


def test_the_first_seed_that_was_looked_at_stands_for_a_method_in_the_tables_order(tmp_path, capsys):
    rows = [{"learner": "maml", "label": label} for label in ("plain", "b", "a")]
    records = [{**start(["plain", "b", "a"]), "rows": rows}]
    records += [result(label, seed, [0.5, 0.7]) for label in ("a", "b", "plain") for seed in (2, 1, 0)]
    records += [result("b", 0, [0.5], run="candidate", role="candidate")]
    for run, seed in (("plain-s0", 1), ("b-s1", 2), ("b-s2", 3), ("a-s0", 4), ("a-s1", 5)):
        look(seed).write(tmp_path / "runs" / f"maml-{run}")
    (tmp_path / "runs" / "maml-a-s0" / FILE).write_bytes(b"PK half a file")
    look(6).write(tmp_path / "runs" / "candidate")
    found = collect(tmp_path, records)
    assert list(found) == [("maml", "plain"), ("maml", "b"), ("maml", "a")]
    for own, seed in zip(found.values(), (1, 2, 5), strict=True):
        assert (own.probabilities == look(seed).probabilities).all()
    assert f"maml-a-s0/{FILE}: left out, it cannot be read:" in capsys.readouterr().err
