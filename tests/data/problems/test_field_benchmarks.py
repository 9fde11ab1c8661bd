"""CelebA, Office-Home and QM9 on tiny copies: layouts, networks, metrics, training, resumption, damaged copies."""

import copy
import re

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import f1_score
from torch import nn

from gradhomog import DataError
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import make_optimizer, make_trainable
from gradhomog_data.problems.pictures import MEAN, CelebA, Encoder, OfficeHome, nine_layers
from gradhomog_data.problems.qm9 import PROPERTIES, MessagePassing, Qm9, complete_graph
from tests.data.problems import benchmark_trees
from tests.data.problems.conftest import problem_run

SETTINGS = {
    "celeba": ("network.width=2", "network.size=16", "problem.batch=4"),
    "office_home": ("network.width=2", "network.size=32", "problem.batch=32"),
    "qm9": ("network.width=4", "problem.batch=5", "problem.held_out=4"),
}


NAMES = ["celeba", "office_home", pytest.param("qm9", marks=pytest.mark.slow)]
"""The import of PyTorch Geometric takes seconds, so everything on QM9 is slow."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A function that returns the folder of a benchmark by name."""
    root = tmp_path_factory.mktemp("trees")

    def folder(name):
        if not (root / name).exists():
            getattr(benchmark_trees, name)(root / name)
        return root / name

    return folder


def made(name, folder, homogenizers="none"):
    config = load(None, [f"problem.name={name}", f'problem.data="{folder}"', *SETTINGS[name]])
    problem = make_trainable(config, Run(name, homogenizers, 0))
    return problem, make_optimizer(config, problem)


# -- all three -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["pcgrad", *(pytest.param(text, marks=pytest.mark.slow) for text in ("none", "single-task"))]
)
@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_trains_and_a_resumed_training_is_the_uninterrupted_one(name, text, tree):
    whole, optimizer = made(name, tree(name), text)
    steps, before = whole.epoch_steps, copy.deepcopy(whole.network.state_dict())
    middle = None
    for index in range(steps):
        if index == steps // 2:
            middle = copy.deepcopy((whole.state_dict(), optimizer.state_dict(), torch.get_rng_state()))
        report = whole.step(index, optimizer, inspect=True)
    assert tuple(report.names) == tuple(whole.tasks)
    trained = {key: value for key, value in whole.network.named_parameters() if value.grad is not None}
    assert {key.rpartition("heads.")[2].partition(".")[0] for key in trained if "heads." in key} == {*whole.tasks}
    changed = [key for key, value in trained.items() if not torch.equal(value, before[key])]
    assert len(changed) > 0.9 * len(trained)  # biases before batch normalization may not change
    resumed, other = made(name, tree(name), text)
    resumed.load_state_dict(middle[0])
    other.load_state_dict(middle[1])
    torch.set_rng_state(middle[2])
    for index in range(steps // 2, steps):
        resumed.step(index, other, inspect=True)
    found = resumed.network.state_dict()
    for key, value in whole.network.state_dict().items():
        assert torch.equal(value, found[key]), key
    assert resumed.validate() == whole.validate()
    result = whole.test([])
    assert result.domains == list(whole.tasks)
    assert np.isfinite(result.scores).all()


def test_a_run_is_a_function_of_its_seed(tree):
    # Seen: dropout drew from a generator that nothing had seeded.
    losses = []
    for state in (1, 2):
        torch.manual_seed(state)
        problem, optimizer = made("office_home", tree("office_home"))
        losses.append(problem.step(0, optimizer, inspect=False).losses)
    assert torch.equal(*losses)


@pytest.mark.parametrize("name", NAMES)
def test_no_example_is_in_two_splits_or_two_batches_of_an_epoch_and_all_are_used(name, tree):
    problem, _ = made(name, tree(name))
    if name == "qm9":
        examples = {split: part.tolist() for split, part in problem.parts.items()}
        expected = 20
    elif name == "celeba":
        examples = {split: [path for path, _ in part] for split, part in problem.parts.items()}
        expected = 25
    else:
        examples = {split: [path for parts in problem.parts.values() for path, _ in parts[split]] for split in
                    ("train", "validation", "test")}  # fmt: skip
        expected = 65 * 21
    together = [example for part in examples.values() for example in part]
    assert len(together) == len(set(together)) == expected
    assert problem.metadata()["fingerprints"]["problem"] == made(name, tree(name))[0].fingerprint


# -- CelebA --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [{}, {"kaggle": True}, {"subfolders": True}])
def test_pictures_labels_and_splits_of_celeba_are_those_of_its_files(layout, tmp_path):
    labels = benchmark_trees.celeba(tmp_path, **layout)
    problem = CelebA(problem_run(16), data=str(tmp_path), batch=4)
    assert list(problem.tasks) == benchmark_trees.ATTRIBUTES
    for number, split in enumerate(("validation", "test"), start=1):
        expected = labels[np.array(benchmark_trees.SPLITS) == number] == 1
        chunks = [*problem.chunks(split)]
        found = torch.cat([torch.stack([chunk[task][1] for task in problem.tasks], 1) for chunk in chunks])
        assert np.array_equal(found.numpy(), expected)
    images = torch.cat([chunk["Attribute_0"][0] for chunk in problem.chunks("test")])
    assert images.shape == (7, 3, 16, 16)
    path = problem.folder / problem.parts["test"][3][0]
    assert path.name == "000022.jpg"
    with Image.open(path) as picture:  # resized without cropping
        assert np.array_equal(images[3].permute(1, 2, 0).numpy(), np.float32(picture.resize((16, 16), 2)) / 255)


def test_the_network_of_celeba_has_nine_layers_in_the_sizes_of_the_paper_and_their_composition_as_function():
    network = nine_layers(64)
    weights = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    assert [tuple(weight.shape[:2]) for weight in weights] == [
        (64, 3), (128, 64), (128, 128), (256, 128), (256, 256), (512, 256), (512, 512), (512, 512), (512, 512),
    ]  # fmt: skip
    assert sum(parameter.numel() for parameter in network.parameters()) == 5_176_640
    network = nine_layers(2).eval()
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    hidden = x
    scale = (1 + 1e-5) ** -0.5  # batch normalization with running statistics of 0 and 1
    for number, weight in enumerate([parameter for parameter in network.parameters() if parameter.ndim > 1]):
        if weight.ndim == 4:
            hidden = nn.functional.conv2d(hidden, weight, padding=1).mul(scale).relu()
            hidden = nn.functional.max_pool2d(hidden, 2) if number in (0, 2, 4) else hidden
        else:
            hidden = (hidden.mean((2, 3)) if hidden.ndim == 4 else hidden).matmul(weight.T).mul(scale).relu()
    torch.testing.assert_close(network(x), hidden)


def test_scores_of_celeba_are_those_of_scikit_learn_over_all_batches(tree):
    problem, _ = made("celeba", tree("celeba"))
    outputs, targets = [], []
    with torch.no_grad():
        for chunk in problem.chunks("test"):
            network = problem.networks[0].eval()
            features = network.shared(chunk["Attribute_0"][0])
            outputs.append(torch.stack([network.heads[task](features)[:, 0] for task in problem.tasks], 1))
            targets.append(torch.stack([chunk[task][1] for task in problem.tasks], 1))
    predicted, labels = (torch.cat(outputs) > 0).numpy(), torch.cat(targets).numpy()
    expected = f1_score(labels, predicted, average=None, zero_division=0)
    assert len(outputs) > 1
    assert problem.test([]).scores == pytest.approx(expected.tolist())


def test_damaged_copies_of_celeba_name_what_is_missing(tmp_path):
    def error():
        with pytest.raises(DataError) as raised:
            CelebA(problem_run(16), data=str(tmp_path))
        return str(raised.value)

    assert re.search(r"img_align_celeba is missing. Expected are img_align_celeba/\*.jpg, list_attr", error())
    benchmark_trees.celeba(tmp_path)
    attributes, picture = tmp_path / "list_attr_celeba.txt", tmp_path / "img_align_celeba" / "000007.jpg"
    text, content = attributes.read_text(), picture.read_bytes()
    picture.unlink()
    assert "1 of 25 pictures are missing, such as 000007.jpg. Extract" in error()
    picture.write_bytes(content[:100])
    for broken, message in (
        (text[:1500], "must have the names of 40 attributes, and 1 or -1 for each picture"),
        ("<!DOCTYPE html>\n", "found 0 and 25 pictures"),
        (text.replace(" -1", "  0", 1), "and 1 or -1 for each picture"),
        (text.replace("000001.jpg", "000099.jpg"), "found 25 and 25 pictures. Download both again"),
        ("\n".join(text.splitlines()[2:]), "must have the names of 40 attributes"),
    ):
        attributes.write_text(broken)
        assert message in error()
    attributes.write_text(text)
    partition = tmp_path / "list_eval_partition.txt"
    splits = partition.read_text()
    for broken in (splits.replace(" 2", " 3"), splits.replace(" 2", " 1"), splits.replace(" 2", " 2 x", 1)):
        partition.write_text(broken)
        assert "whose splits are 0, 1 and 2" in error()
    partition.write_text(splits)
    problem = CelebA(problem_run(16), data=str(tmp_path), batch=12)
    with pytest.raises(DataError, match=r"000007.jpg: cannot be read as a picture .* Remove or replace the file"):
        problem.batch(0)
    (tmp_path / "list_eval_partition.txt").unlink()
    assert "list_eval_partition.txt is missing" in error()


# -- Office-Home -----------------------------------------------------------------------------------------------------


def test_every_class_of_office_home_is_split_alike_and_a_step_has_a_batch_of_each_domain(tree):
    problem, _ = made("office_home", tree("office_home"))
    for task, parts in problem.parts.items():
        sizes = {split: np.bincount([label for _, label in part], minlength=65) for split, part in parts.items()}
        each = (3, 1, 2) if task == "Clipart" else (3, 1, 1)
        for split, size in zip(("train", "validation", "test"), each, strict=True):
            assert (sizes[split] == size).all()
        assert all(path.startswith(f"{task}/{benchmark_trees.CLASSES[label]}/") for path, label in parts["train"])
    batch = problem.batch(0)
    assert {task: tuple(x.shape) for task, (x, _) in batch.items()} == dict.fromkeys(problem.tasks, (32, 3, 32, 32))
    lowest = -np.array(MEAN) / (0.229, 0.224, 0.225)  # of black
    assert all((x.amin((0, 2, 3)).numpy() > lowest - 1e-5).all() and x.min() < -1 for x, _ in batch.values())
    other = OfficeHome(problem_run(32), data=str(tree("office_home")), seed=1)
    assert other.fingerprint != problem.fingerprint


def test_weights_of_torchvision_are_loaded_into_the_shared_network_without_the_last_layer(tree, tmp_path):
    source = Encoder(32, 16)[0]
    path, data = tmp_path / "resnet18.pth", str(tree("office_home"))
    names = {
        "conv1.weight",
        "bn1.running_mean",
        "layer1.0.conv2.weight",
        "layer4.1.bn2.bias",
        "layer2.0.downsample.0.weight",
    }
    assert names <= source.state_dict().keys()  # those of torchvision
    torch.save(source.state_dict() | {"fc.weight": torch.zeros(1000, 128), "fc.bias": torch.zeros(1000)}, path)
    problem = OfficeHome(problem_run(32), data=data, weights=str(path))
    for name, value in problem.networks[0].shared[0].state_dict().items():
        assert torch.equal(value, source.state_dict()[name])
    torch.save({**source.state_dict(), "conv1.weight": source.state_dict()["conv1.weight"] / 2}, path)
    assert OfficeHome(problem_run(32), data=data, weights=str(path)).fingerprint != problem.fingerprint
    torch.save(Encoder(32, 8)[0].state_dict(), path)
    for file in (path, tmp_path / "none.pth", tree("office_home") / "Art" / "Class00" / "00000.jpg"):
        with pytest.raises(DataError, match=r"`problem.weights` .*: must be the state_dict of torchvision's resnet18"):
            OfficeHome(problem_run(32), data=data, weights=str(file))


def test_damaged_copies_of_office_home_name_the_domain(tmp_path):
    with pytest.raises(DataError, match=r"each with 65 folders of at least 5 pictures; found 0 in Art, "):
        OfficeHome(problem_run(32), data=str(tmp_path))
    benchmark_trees.office_home(tmp_path, ["Art"])
    with pytest.raises(DataError, match="found 0 in Clipart"):
        OfficeHome(problem_run(32), data=str(tmp_path))
    pictures = sorted((tmp_path / "Art" / "Class07").iterdir())
    for picture in pictures[4:]:
        picture.unlink()
    with pytest.raises(DataError, match="found 65 in Art, the smallest with 4"):
        OfficeHome(problem_run(32), data=str(tmp_path))
    for picture in pictures[:4]:
        picture.unlink()
    with pytest.raises(DataError, match="found 64 in Art"):
        OfficeHome(problem_run(32), data=str(tmp_path))


# -- QM9 -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_graph_of_a_molecule_is_complete_with_bonds_and_distances_of_the_transforms_of_pytorch_geometric(tree):
    from torch_geometric.transforms import Distance

    problem, _ = made("qm9", tree("qm9"))
    for number in range(5):
        molecule = problem.molecules[number]
        found = complete_graph(molecule)
        pairs = [(i, j) for i in range(molecule.num_nodes) for j in range(molecule.num_nodes) if i != j]
        assert list(map(tuple, found.edge_index.T.tolist())) == pairs
        bonds = dict(zip(map(tuple, molecule.edge_index.T.tolist()), molecule.edge_attr, strict=True))
        bare = molecule.clone()
        bare.edge_index = found.edge_index
        bare.edge_attr = torch.stack([bonds.get(pair, torch.zeros(4)) for pair in pairs])
        torch.testing.assert_close(found.edge_attr, Distance(norm=False)(bare).edge_attr)


@pytest.mark.slow
def test_message_passing_is_that_of_the_equations(tree):
    problem, _ = made("qm9", tree("qm9"))
    graphs, _ = problem.batch(0)["mu"]
    torch.manual_seed(0)
    network = MessagePassing(3)
    h = (graphs.x @ network.lin0.weight.T + network.lin0.bias).relu()
    matrices = network.conv.nn(graphs.edge_attr).view(-1, 3, 3)  # applied from the right
    for _ in range(3):
        sums, degree = torch.zeros_like(h), torch.zeros(len(h), 1)
        for (source, target), matrix in zip(graphs.edge_index.T.tolist(), matrices, strict=True):
            sums[target] = sums[target] + h[source] @ matrix
            degree[target] += 1
        m = (sums / degree + h @ network.conv.lin.weight.T + network.conv.bias).relu()
        gru = network.gru
        (ir, iz, i_n), (hr, hz, hn) = (
            (x @ weight.T + bias).chunk(3, 1)
            for x, weight, bias in ((m, gru.weight_ih_l0, gru.bias_ih_l0), (h, gru.weight_hh_l0, gru.bias_hh_l0))
        )
        r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
        h = (1 - z) * (i_n + r * hn).tanh() + z * h
    rows = []
    for molecule in range(graphs.num_graphs):  # Set2Set: Vinyals et al. 2016, arXiv:1511.06391, eq. 3 to 7
        atoms, q = h[graphs.batch == molecule], torch.zeros(1, 6)
        state = torch.zeros(1, 1, 3), torch.zeros(1, 1, 3)
        for _ in range(3):
            query, state = network.set2set.lstm(q[None], state)
            attention = (atoms @ query[0, 0]).softmax(0)
            q = torch.cat([query[0], attention[None] @ atoms], 1)
        rows.append(q)
    expected = (torch.cat(rows) @ network.lin1.weight.T + network.lin1.bias).relu()
    torch.testing.assert_close(network(graphs), expected)


@pytest.mark.slow
def test_errors_of_qm9_are_in_the_units_of_the_papers_and_validation_in_standard_deviations(tree):
    problem, _ = made("qm9", tree("qm9"))
    columns = [column for column, _ in PROPERTIES.values()]
    assert columns == [0, 1, 2, 3, 5, 6, 12, 13, 14, 15, 11]  # of the codes of Nash-MTL, FAMO and LibMTL
    y = torch.stack([problem.molecules[number].y[0, columns] for number in range(20)])
    train, test, validation = (y[problem.parts[name]] for name in ("train", "test", "validation"))
    for head in problem.networks[0].heads.values():
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    units = torch.tensor([1, 1, 1000, 1000, 1, 1000, 1000, 1000, 1000, 1000, 1.0])
    expected = (test - train.mean(0)).abs().mean(0) * units  # of the mean, which an output of 0 predicts
    assert problem.test([]).scores == pytest.approx(expected.tolist(), rel=1e-5)
    expected = (validation - train.mean(0)).abs().mean(0) / train.std(0)
    assert problem.validate().scores == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.slow
def test_qm9_is_never_downloaded_or_processed_and_damaged_files_are_named(tree, tmp_path, monkeypatch):
    from torch_geometric.datasets import QM9

    monkeypatch.setattr(QM9, "download", lambda self: pytest.fail("downloads"))
    monkeypatch.setattr(QM9, "process", lambda self: pytest.fail("processes"))
    run = problem_run()
    Qm9(run, data=str(tree("qm9")), held_out=4)  # without raw files
    with pytest.raises(DataError, match=r"processed/data_v3.pt is missing. Nothing is downloaded here; .* if rdkit is"):
        Qm9(run, data=str(tmp_path))
    with pytest.raises(DataError, match=r"found 20 molecules; QM9 has 130,831. `problem.held_out` 10,000 are for"):
        Qm9(run, data=str(tree("qm9")))
    content = (tree("qm9") / "processed" / "data_v3.pt").read_bytes()
    path = tmp_path / "processed" / "data_v3.pt"
    path.parent.mkdir()
    for broken in (content[: len(content) // 2], b"", b"<!DOCTYPE html>"):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"data_v3\.pt: cannot be read as QM9"):
            Qm9(run, data=str(tmp_path))
    data, slices, kind = torch.load(tree("qm9") / "processed" / "data_v3.pt", weights_only=False)
    for name, values in (("edge_attr", torch.zeros(len(data["edge_attr"]), 5)), ("y", torch.full((20, 19), torch.nan))):
        torch.save(({**data, name: values}, slices, kind), path)
        with pytest.raises(DataError, match=r"must have \(11, 4, 19\) columns, and y finite"):
            Qm9(run, data=str(tmp_path))
    assert not (tmp_path / "raw").exists()
