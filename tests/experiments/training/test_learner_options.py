"""Options that a run passes to learners: input shape, feature maps instead of vectors, number of classes."""

import pytest
import torch
from torch import nn

from gradhomog import ConfigError
from gradhomog.experiments.episodes.splits import streams
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.meta_learning import make_learner

GLYPHS = [
    'domains.train=["glyphs:tifinagh", "glyphs:arrows"]', 'domains.test=["glyphs:georgian"]',
    "network.width=4", "network.size=16", "episodes.tasks=2",
]  # fmt: skip


def build(learner, overrides=GLYPHS):
    config = load(None, overrides)
    source = streams(config, 0)
    return make_learner(config, Run(learner, "none", 0), source), source


def test_a_relation_network_receives_feature_maps_unless_vectors_are_requested():
    maps, source = build("relationnet")
    assert not any(isinstance(part, nn.Flatten) for part in maps.encoder.modules())
    assert maps.shape == (4, 1, 1)
    vectors, _ = build("relationnet(maps=false)")
    assert isinstance(list(vectors.encoder)[-1], nn.Flatten)
    assert vectors.shape == (4,)
    assert torch.equal(maps.encoder[0].weight, vectors.encoder[0].weight)
    assert maps.rows(source.train.batch(0)).losses.isfinite().all()


@pytest.mark.parametrize("name", ["baseline", "baseline_pp", "meta_transfer(pretrain_steps=2)", "skd"])
def test_a_learner_with_a_classifier_receives_the_number_of_training_classes(name):
    learner, source = build(name)
    expected = sum(len(domain.classes("train")) for domain in source.train.domains)
    sizes = {len(p) for p in learner.extra_modules["classifier"].parameters()}
    assert sizes == {expected}
    for index in range(3):
        assert learner.rows(source.train.batch(index)).losses.isfinite().all()


def test_a_baseline_is_rejected_if_domains_declare_no_classes():
    config = load(None, GLYPHS)
    source = streams(config, 0)
    source.train._class_numbers = {name: {} for name in source.train._class_numbers}
    assert source.train.batch(0).classes is None
    with pytest.raises(ConfigError, match=r"baseline is trained to classify all training classes.*glyphs:arrows"):
        make_learner(config, Run("baseline", "none", 0), source)
