"""NYUv2 and Cityscapes: their files, augmentation, losses and metrics, SegNet and MTAN, and whole comparisons."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanAbsoluteError
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from gradhomog import DataError
from gradhomog.cli import main
from gradhomog.experiments.diagnose import diagnose
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog_data.problems import _dense_metrics as metrics
from gradhomog_data.problems._dense_images import DEPTH, IMAGE, NORMAL, SEGMENTATION, DenseImages, augment
from gradhomog_data.problems._segnet import Attention, SegNet, SegNetMaps, dense_network
from gradhomog_data.problems.dense import Cityscapes, NYUv2
from tests.data.problems.conftest import problem_run
from tests.experiments.training.test_trainer import train, without_times, written_arrays

SIZE = (32, 64)


def write_tree(root, label="label", normals=True, counts=(5, 3)):
    """Write random images, targets with unknown pixels, in the folders and types of MTAN's data."""
    random = np.random.default_rng(0)
    for split, count in zip(("train", "val"), counts, strict=True):
        for kind in ("image", label, "depth", *(["normal"] if normals else [])):
            (root / split / kind).mkdir(parents=True)
        for index in range(count):
            unknown = random.random(SIZE) < 0.2
            normal = random.normal(size=(*SIZE, 3))
            normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
            arrays = {
                "image": random.random((*SIZE, 3)), label: np.where(unknown, -1.0, random.integers(7, size=SIZE)),
                "depth": np.where(unknown, 0, random.random(SIZE) + 0.1)[..., None],
                "normal": np.where(unknown[..., None], 0, normal),
            }  # fmt: skip
            for kind in arrays if normals else (k for k in arrays if k != "normal"):
                np.save(root / split / kind / f"{index}.npy", arrays[kind])
    return root


@pytest.fixture(scope="session")
def rooms(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("nyuv2"))


@pytest.fixture(scope="session")
def streets(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("cityscapes"), label="label_7", normals=False)


def settings(name, data, *more):
    return [
        f"problem.name={name}", f'problem.data="{data}"', "problem.batch=2", "problem.averaged_epochs=2",
        "network.width=2", "train.steps=4", "train.validate_every=2", "train.log_every=1", "train.lr_decay_every=2",
        "train.checkpoint_every=1", "seeds=1", *more,
    ]  # fmt: skip


def run(width=2, homogenizers="none"):
    return dataclasses.replace(problem_run(homogenizers=homogenizers), width=width)


# -- files ---------------------------------------------------------------------------------------------------------


def test_files_are_in_the_order_of_their_numbers_with_channels_last(tmp_path):
    write_tree(tmp_path, counts=(11, 1))
    for index in range(11):
        path = tmp_path / "train" / "image" / f"{index}.npy"
        np.save(path, np.full((*SIZE, 3), [index / 20, 0.0, 1.0], dtype=np.float32))
    images = DenseImages(tmp_path / "train", NYUv2.folders, 13)
    assert images.count == 11
    for index in (0, 2, 10):
        maps = images.read(index, torch.device("cpu"))
        assert maps[IMAGE].mean((1, 2)).tolist() == pytest.approx([index / 20, 0, 1])
        assert {kind: tuple(values.shape) for kind, values in maps.items()} == {
            IMAGE: (3, *SIZE), SEGMENTATION: (1, *SIZE), DEPTH: (1, *SIZE), NORMAL: (3, *SIZE),
        }  # fmt: skip
        np.testing.assert_array_equal(maps[SEGMENTATION][0], np.load(tmp_path / f"train/label/{index}.npy"))
        assert ((maps[NORMAL] == 0).all(0) == (maps[SEGMENTATION][0] == -1)).all()


def truncate(path):
    path.write_bytes(path.read_bytes()[:-9])


def remove(path):
    path.unlink()


def rename(path):
    path.rename(path.with_name("7.npy"))


def replace(array):
    return lambda path: np.save(path, array)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("val/depth/2.npy", remove, r"the same number in each folder; found 3 in .*image, .* 2 in .*depth"),
        ("train/label/4.npy", rename, r"label/4.npy is missing: the folder has 5 files, numbered from 0"),
        ("train/normal/3.npy", truncate, r"train/normal/3.npy: not a complete .npy file .*Copy it again"),
        ("train/image/1.npy", lambda path: path.write_bytes(b""), r"image/1.npy: not a complete .npy file"),
        ("train/depth/0.npy", replace(np.zeros(SIZE)), r"depth/0.npy: expected floats \(32, 64, 1\); found float64"),
        ("val/image/1.npy", replace(np.zeros((3, *SIZE))), r"expected floats \(32, 64, 3\); found float64 \(3, 32, 64"),
        ("val/image/0.npy", replace(np.zeros((30, 64, 3))), r"image/0.npy: height and width must be multiples of 32"),
        ("val/image/1.npy", replace(np.zeros((*SIZE, 3), np.uint8)), r"expected floats .*; found uint8"),
        ("val/depth/1.npy", replace(np.full((*SIZE, 1), None)), r"depth/1.npy: not a complete .npy file"),
    ],
)  # fmt: skip
def test_a_broken_copy_raises_with_the_file(tmp_path, file, change, message):
    write_tree(tmp_path)
    change(tmp_path / file)
    with pytest.raises(DataError, match=message):
        NYUv2(run(), data=str(tmp_path))


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("label", np.full(SIZE, 13), "-1 to 12; found 13 to 13"),
        ("image", np.full((*SIZE, 3), 255.0), "-1 to 2; found 255 to 255"),
        ("depth", np.full((*SIZE, 1), np.nan), "-1000 to 1000; found nan to nan"),
        ("normal", np.full((*SIZE, 3), 127.5), "-1.1 to 1.1; found 127.5 to 127.5"),
    ],
)
def test_values_out_of_range_raise(tmp_path, file, array, message):
    write_tree(tmp_path)
    np.save(tmp_path / f"train/{file}/1.npy", array)
    problem = NYUv2(run(), data=str(tmp_path), batch=5)
    with pytest.raises(DataError, match=rf"{file}/1.npy: values must be from {message}"):
        problem.batch(0)


def test_a_missing_folder_raises(tmp_path):
    with pytest.raises(DataError, match=r"found 0 in .*absent/train/image, 0 in .*absent/train/label, "):
        NYUv2(run(), data=str(tmp_path / "absent"))


def test_cityscapes_has_its_labels_in_one_of_two_folders(tmp_path, streets):
    write_tree(tmp_path, normals=False)
    first, second = (Cityscapes(run(), data=str(root), batch=2) for root in (streets, tmp_path))
    for batch, other in zip(first.chunks("test"), second.chunks("test"), strict=True):
        assert torch.equal(batch[SEGMENTATION][1], other[SEGMENTATION][1])
    assert list(first.tasks) == [SEGMENTATION, DEPTH]


# -- augmentation --------------------------------------------------------------------------------------------------


def test_augmentation_moves_all_maps_together_and_adapts_depths_and_normals():
    """Every map has the column of its pixel as its value, from which position, scale and direction follow."""
    height, width = 48, 96
    column = torch.arange(width).expand(height, width).float()
    maps = {
        IMAGE: torch.stack([column, torch.arange(height)[:, None].expand(height, width).float(), column]),
        SEGMENTATION: column[None], DEPTH: column[None], NORMAL: torch.tensor([0.6, 0.0, 0.8]).view(3, 1, 1)
        .expand(3, height, width),
    }  # fmt: skip
    found = []
    for seed in range(40):
        result = augment(maps, np.random.default_rng(seed))
        slope = (result[IMAGE][0, 0, -1] - result[IMAGE][0, 0, 0]).item()
        part = round(abs(slope)) + 1
        assert part in {int(width / scale) for scale in (1, 1.2, 1.5)}
        scale = {96: 1.0, 80: 1.2, 64: 1.5}[part]
        found.append((scale, slope > 0))
        torch.testing.assert_close(result[DEPTH] * scale, result[SEGMENTATION])
        assert (result[IMAGE][:1] - result[SEGMENTATION]).abs().max() < 1
        assert round((result[IMAGE][1, -1, 0] - result[IMAGE][1, 0, 0]).item()) + 1 == int(height / scale)
        torch.testing.assert_close(result[NORMAL][0], torch.full((height, width), 0.6 if slope > 0 else -0.6))
        torch.testing.assert_close(result[NORMAL][1:], maps[NORMAL][1:])
    assert {*found} == {(scale, direction) for scale in (1.0, 1.2, 1.5) for direction in (True, False)}


def test_a_batch_is_a_function_of_seed_and_step_and_test_images_are_unchanged(rooms):
    first, second = (NYUv2(run(), data=str(rooms)) for _ in range(2))
    plain = NYUv2(run(), data=str(rooms), augmentation=False)
    batches = [problem.batch(3) for problem in (first, second, plain)]
    images = [batch[SEGMENTATION][0] for batch in batches]
    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])
    stored = {np.load(rooms / f"train/image/{n}.npy").astype(np.float32).tobytes() for n in range(5)}
    assert all(np.moveaxis(image.numpy(), 0, -1).tobytes() in stored for image in images[2])
    assert [len(batch[DEPTH][1]) for batch in first.chunks("test")] == [2, 1]


# -- losses and metrics --------------------------------------------------------------------------------------------


@pytest.fixture
def predicted():
    random = torch.Generator().manual_seed(0)
    shape = (4, 8, 8)
    unknown = torch.rand(shape, generator=random) < 0.3
    normals = torch.nn.functional.normalize(torch.randn(4, 3, 8, 8, generator=random), dim=1)
    return {
        SEGMENTATION: (
            torch.randn(4, 5, 8, 8, generator=random),
            torch.randint(5, shape, generator=random).masked_fill(unknown, -1),
        ),
        DEPTH: (
            torch.randn(4, 1, 8, 8, generator=random),
            (torch.rand(4, 1, 8, 8, generator=random) + 0.1).masked_fill(unknown[:, None], 0),
        ),
        NORMAL: (2 * normals + torch.randn(4, 3, 8, 8, generator=random), normals.masked_fill(unknown[:, None], 0)),
    }


def test_segmentation_equals_torchmetrics_over_all_images(predicted):
    outputs, targets = predicted[SEGMENTATION]
    meter = metrics.Segmentation(5)
    for part in (slice(0, 3), slice(3, 4)):
        meter.update(outputs[part], targets[part])
    expected = {
        "mIoU": MulticlassJaccardIndex(5, ignore_index=-1)(outputs, targets),
        "pixel accuracy": MulticlassAccuracy(5, average="micro", ignore_index=-1)(outputs, targets),
    }
    assert meter.scores() == pytest.approx({name: value.item() for name, value in expected.items()})


def test_a_class_that_occurs_nowhere_is_not_counted_in_the_mean():
    meter = metrics.Segmentation(4)
    meter.update(torch.eye(4)[[0, 0, 1, 1, 3]].T[None, :, None], torch.tensor([[[0, 0, 1, 0, -1]]]))
    assert meter.scores() == pytest.approx({"mIoU": (2 / 3 + 1 / 2) / 2, "pixel accuracy": 3 / 4})


def test_depth_errors_are_means_over_batches_of_those_of_valid_pixels(predicted):
    outputs, targets = predicted[DEPTH]
    meter, expected = metrics.BatchMeans(metrics.depth_errors), []
    for part in (slice(0, 3), slice(3, 4)):
        meter.update(outputs[part], targets[part])
        valid = targets[part] != 0
        error = MeanAbsoluteError()(outputs[part][valid], targets[part][valid]).item()
        relative = np.abs(outputs[part].numpy() - targets[part].numpy())[valid] / targets[part].numpy()[valid]
        expected.append((error, relative.mean()))
    assert [*meter.scores().values()] == pytest.approx(np.mean(expected, 0).tolist())


def test_angles_are_those_of_normalized_outputs_at_valid_pixels(predicted):
    outputs, targets = (values.double().movedim(1, -1).numpy() for values in predicted[NORMAL])
    meter = metrics.BatchMeans(metrics.normal_errors)
    meter.update(*predicted[NORMAL])
    outputs, targets = outputs[targets.any(-1)], targets[targets.any(-1)]
    cosines = (outputs * targets).sum(1) / np.linalg.norm(outputs, axis=1)
    angles = np.degrees(np.arccos(cosines))
    expected = [angles.mean(), np.median(angles), *((angles < angle).mean() for angle in (11.25, 22.5, 30))]
    assert [*meter.scores().values()] == pytest.approx(expected, rel=1e-5)
    assert list(meter.scores()) == list(metrics.METRICS[NORMAL])


def test_losses_are_means_over_valid_pixels(predicted):
    logits, labels = (values.double().numpy() for values in predicted[SEGMENTATION])
    log = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    picked = [log[n, int(labels[n, i, j]), i, j] for n, i, j in np.argwhere(labels >= 0)]
    assert metrics.segmentation_loss(*predicted[SEGMENTATION]).item() == pytest.approx(-np.mean(picked))
    depths, truth = (values.double().numpy() for values in predicted[DEPTH])
    assert metrics.depth_loss(*predicted[DEPTH]).item() == pytest.approx(np.abs(depths - truth)[truth != 0].mean())
    outputs, normals = (values.double().movedim(1, -1).numpy() for values in predicted[NORMAL])
    cosines = (outputs * normals).sum(-1) / np.linalg.norm(outputs, axis=-1)
    assert metrics.normal_loss(*predicted[NORMAL]).item() == pytest.approx(1 - cosines[normals.any(-1)].mean())


# -- networks ------------------------------------------------------------------------------------------------------

OUTPUTS = {SEGMENTATION: 13, DEPTH: 1, NORMAL: 3}


@pytest.mark.parametrize(
    ("architecture", "outputs", "count"),
    [
        ("segnet", OUTPUTS, 25_055_185), ("mtan", OUTPUTS, 44_229_073),
        ("segnet", {SEGMENTATION: 7, DEPTH: 1}, 25_017_672), ("mtan", {SEGMENTATION: 7, DEPTH: 1}, 41_206_984),
    ],
)  # fmt: skip
def test_the_number_of_parameters_is_that_of_famos_code(architecture, outputs, count):
    """The numbers of `SegNet` and `SegNetMtan` in `models.py` of its folders `nyuv2` and `cityscapes`."""
    with torch.device("meta"):
        assert sum(p.numel() for p in dense_network(architecture, 64, outputs).parameters()) == count


def test_masks_are_between_zero_and_one_and_masks_of_one_give_segnet():
    torch.manual_seed(0)
    shared, head = SegNetMaps(3), nn.Identity()
    attention, masks = Attention(shared, head), []
    sigmoids = [module for module in attention.modules() if isinstance(module, nn.Sigmoid)]
    for module in sigmoids:
        module.register_forward_hook(lambda module, inputs, output: masks.append(output))
    images = torch.rand(2, 3, *SIZE)
    maps = shared(images)
    assert not torch.allclose(attention(maps, shared), SegNet.forward(shared, images), atol=0.1)
    assert len(masks) == 10
    assert all(((mask > 0) & (mask < 1)).all() for mask in masks)
    attended = [last.shape for _, last in (*maps.encoder, *maps.decoder[::-1])]
    assert [mask.shape for mask in masks] == attended
    norms = [module for module in attention.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms[1::2]:
        nn.init.constant_(norm.bias, 40.0)  # of the norm before a sigmoid
    maps = shared.eval()(images)
    assert torch.equal(attention(maps, shared), maps.decoder[0][1])


def test_attention_of_level_one_is_the_equation_of_the_paper():
    """â = h(g([u; f(â of level 0), pooled])) ⊙ p, with the same layers applied by hand."""
    torch.manual_seed(0)
    shared = SegNetMaps(2).eval()
    attention = Attention(shared, nn.Identity()).eval()
    seen = []
    shared.attended_encoder[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    maps = shared(torch.rand(1, 3, *SIZE))
    attention(maps, shared)
    (u, p), (u1, p1) = maps.encoder[:2]
    f = nn.functional.max_pool2d(shared.attended_encoder[0](attention.encoder[0](u) * p), 2)
    (g, h) = attention.encoder[1]
    torch.testing.assert_close(seen[0], h(g(torch.cat([u1, f], 1))) * p1)


def test_a_loss_reaches_its_own_attention_and_the_shared_layers():
    network = dense_network("mtan", 2, OUTPUTS)
    network.output(DEPTH, network.shared(torch.rand(2, 3, *SIZE))).square().mean().backward()
    reached = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    assert {name.split(".")[1] for name in reached if name.startswith("heads")} == {DEPTH}
    assert {name for name, _ in network.shared.named_parameters(prefix="shared")} <= reached


def test_every_architecture_and_the_single_tasks_start_from_the_same_segnet(rooms):
    networks = [
        NYUv2(run(homogenizers=text), data=str(rooms), architecture=architecture).networks[0].shared.state_dict()
        for text, architecture in (("none", "segnet"), ("none", "mtan"), ("single-task", "mtan"))
    ]
    for other in networks[1:]:
        assert all(torch.equal(other[name], value) for name, value in networks[0].items())
    assert networks[0].keys() == networks[2].keys() < networks[1].keys()


# -- runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "more"),
    [("nyuv2", "pcgrad", ()), ("cityscapes", "single-task", ('problem.architecture="segnet"',))],
)
def test_an_interrupted_run_resumes_to_the_records_and_files_of_an_uninterrupted_run(
    name, text, more, rooms, streets, tmp_path
):
    config = load(None, settings(name, rooms if name == "nyuv2" else streets, *more))
    whole = train(config, tmp_path / "whole", run=Run(name, text, 0))
    parts = train(config, tmp_path / "parts", (1, 3), Run(name, text, 0))
    assert without_times(parts) == without_times(whole)
    assert all(map(np.array_equal, written_arrays(tmp_path / "parts"), written_arrays(tmp_path / "whole")))
    (step, *_) = [record for record in whole if record["event"] == "step"]
    tasks = 3 if name == "nyuv2" else 2
    assert sum(norm > 0 for norm in step["norms"]) == tasks
    assert sum(None in row for row in step["cosines"]) == (tasks if text == "single-task" else 0)


@pytest.mark.slow
def test_compare_trains_and_reports_metrics_of_three_tasks(rooms, without_figures, tmp_path, capsys):
    arguments = [f"--set={text}" for text in settings("nyuv2", rooms, 'homogenizers=["single-task", "pcgrad"]')]
    assert main(["compare", "--out", str(tmp_path / "out"), "--jobs=1", *arguments]) == 0
    text = capsys.readouterr().out
    names = [name for task in metrics.METRICS.values() for name in task]
    assert all(name in text for name in names)
    for row in ("plain", "single-task", "pcgrad"):
        assert row in text
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("**/result.json")]
    assert len(results) >= 3
    for result in results:
        assert result["metric"] == "loss"
        assert result["domains"] == [SEGMENTATION, DEPTH, NORMAL]
        assert list(result["additional_scores"]) == list(result["additional_metrics"]) == names
        assert result["additional_metrics"]["mIoU"] == "accuracy"


def test_images_for_validation_are_held_out_of_training(rooms):
    problem = NYUv2(run(), data=str(rooms), batch=4, validation=0.4)
    assert (problem.training, problem.state_selection, problem.metadata()["held_out"]) == (3, "best", True)
    assert {int(i) for index in range(9) for i in problem.indices(index, problem.training)} == {0, 1, 2}
    assert sum(len(batch[DEPTH][1]) for batch in problem.chunks("validation")) == 2


@pytest.mark.slow
def test_a_diagnosis_measures_the_shared_part(streets):
    found = diagnose(load(None, settings("cityscapes", streets)), at=1, batches=3, seconds=0)
    assert [*found.result.tasks] == [SEGMENTATION, DEPTH]
