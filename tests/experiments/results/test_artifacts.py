"""Saliency maps round-trip, and each method has those of the right run."""

import numpy as np

from gradhomog.experiments.results import artifacts
from gradhomog.experiments.results.artifacts import SaliencyMaps, collect
from gradhomog.experiments.results.checksums import file_digest
from tests.experiments.synthetic_records import comparison, result, with_start


def example_maps(seed=0, channels=1, maps=(), **more):
    shared, seeded = np.random.default_rng(0), np.random.default_rng(seed)
    shape = (3, channels, 8, 8)
    fields = {
        "images": shared.uniform(-1, 1, shape).astype(np.float32),
        "domains": ("glyphs:georgian", "cub", "<script>"),
        "probabilities": seeded.uniform(size=3).astype(np.float32),
        "saliency": seeded.normal(size=shape).astype(np.float32),
        "maps": {name: seeded.uniform(size=(3, 4, 4)).astype(np.float32) for name in maps},
    }
    return SaliencyMaps(**(fields | more))


def test_saliency_maps_round_trip(tmp_path):
    for written in (example_maps(maps=("a: b/c", "../é")), example_maps(saliency=None)):
        written.write(tmp_path)
        read = artifacts.read(tmp_path / SaliencyMaps.FILE, SaliencyMaps)
        assert list(tmp_path.iterdir()) == [tmp_path / SaliencyMaps.FILE]
        assert read.domains == written.domains
        assert list(read.maps) == list(written.maps)
        for name in written.maps:
            assert (read.maps[name] == written.maps[name]).all()
        for name in ("images", "probabilities", "saliency"):
            assert np.array_equal(getattr(read, name), getattr(written, name))


def test_a_folder_without_saliency_maps_has_none(tmp_path):
    assert collect(tmp_path, comparison(["plain"], seeds=1, steps=1), SaliencyMaps) == {}


def write_maps(seed, folder):
    """Write the maps of a seed, and return the entry `files` of the result of their run."""
    folder.mkdir(parents=True, exist_ok=True)
    example_maps(seed).write(folder)
    return {SaliencyMaps.FILE: file_digest(folder / SaliencyMaps.FILE)}


def test_each_method_has_the_maps_of_its_first_seed_with_maps_in_the_tables_order(tmp_path, capsys):
    records = [result("b", 0, [0.5], run="candidate", role="candidate")]
    records += [result(label, seed, [0.5, 0.7]) for label in ("plain", "b", "a") for seed in range(3)]
    seeds = {"candidate": 6, "maml-plain-s0": 1, "maml-b-s1": 2, "maml-b-s2": 3, "maml-a-s0": 4, "maml-a-s1": 5}
    for record in records:
        if record["run"] in seeds:
            record["files"] = write_maps(seeds[record["run"]], tmp_path / "runs" / record["run"])
    write_maps(7, tmp_path / "runs" / "maml-b-s0")  # added after the run had finished
    (tmp_path / "runs" / "maml-a-s0" / SaliencyMaps.FILE).write_bytes(b"PK half a file")
    found = collect(tmp_path, with_start(records), SaliencyMaps)
    assert list(found) == [("maml", "plain"), ("maml", "b"), ("maml", "a")]
    for maps, seed in zip(found.values(), (1, 2, 5), strict=True):
        assert (maps.probabilities == example_maps(seed).probabilities).all()
    assert f"maml-a-s0/{SaliencyMaps.FILE}: skipped, it cannot be read:" in capsys.readouterr().err
