"""Networks by name: unknown names, and inputs that a network does not support."""

import pytest

from gradhomog import ConfigError, UnknownPluginError, available
from gradhomog.experiments import content
from gradhomog.experiments.run_file.schema import load
from tests.data.networks.names import IMAGES, NETWORKS


def test_run_files_accept_exactly_the_names_of_networks():
    assert available("networks") == tuple(sorted(NETWORKS))
    with pytest.raises(UnknownPluginError, match=r"unknown network 'conv5'. Did you mean 'conv"):
        load(None, ["network.name=conv5"])


@pytest.mark.parametrize(("name", "near"), [("Conv4", "conv4"), ("resnet-12", "resnet12"), ("mpl", "mlp")])
def test_an_unknown_name_raises_with_the_nearest_name_and_all_names(name, near):
    with pytest.raises(UnknownPluginError, match=rf"unknown network '{name}'.* '{near}'\? Installed: conv4, .*, mlp, "):
        content.build_network(name, (3, 32, 32), 5, 8)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("shape", [(1,), (3, 32, 28)])
def test_networks_for_images_reject_vectors_and_rectangular_images(name, shape):
    with pytest.raises(ConfigError, match=rf"{name} takes square images; .*\({shape[0]},"):
        content.build_network(name, shape, 5, 8)


@pytest.mark.parametrize("name", ["conv4", "conv6", "resnet12"])
def test_images_that_pooling_reduces_to_nothing_raise_with_the_smallest_size(name):
    content.build_network(name, (3, 16, 16), 5, 2)
    with pytest.raises(ConfigError, match=rf"{name} needs images of at least 16×16 pixels: .* got 15×15"):
        content.build_network(name, (3, 15, 15), 5, 2)


def test_mlp_without_flatten_raises():
    with pytest.raises(ConfigError, match="mlp has no feature maps"):
        content.build_network("mlp", (3,), 5, 8, flatten=False)
