"""Networks by name: unknown names, and inputs that a network does not support."""

import typing

import pytest

from gradhomog import ConfigError
from gradhomog.experiments import models
from gradhomog.experiments.config.schema import Network


def test_run_files_accept_exactly_the_names_of_networks():
    assert typing.get_args(typing.get_type_hints(Network)["name"]) == models.NAMES


@pytest.mark.parametrize(("name", "near"), [("Conv4", "conv4"), ("resnet-12", "resnet12"), ("mpl", "mlp")])
def test_an_unknown_name_raises_with_the_nearest_name_and_all_names(name, near):
    with pytest.raises(ConfigError, match=rf"`network.name` must be one of conv4, .*, mlp; got '{name}'.* '{near}'\?"):
        models.build(name, (3, 32, 32), 5, 8)


def test_a_name_unlike_all_others_has_no_suggestion():
    with pytest.raises(ConfigError, match=r"got 'transformer'\.$"):
        models.build("transformer", (3, 32, 32), 5, 8)


@pytest.mark.parametrize("name", models.NAMES[:-1])
@pytest.mark.parametrize("shape", [(1,), (3, 32, 28)])
def test_networks_for_images_reject_vectors_and_rectangular_images(name, shape):
    with pytest.raises(ConfigError, match=rf"{name} takes square images; .*\({shape[0]},"):
        models.build(name, shape, 5, 8)


@pytest.mark.parametrize("name", ["conv4", "conv6", "resnet12"])
def test_images_that_pooling_reduces_to_nothing_raise_with_the_smallest_size(name):
    models.build(name, (3, 16, 16), 5, 2)
    with pytest.raises(ConfigError, match=rf"{name} needs images of at least 16×16 pixels: .* got 15×15"):
        models.build(name, (3, 15, 15), 5, 2)


@pytest.mark.parametrize("name", ["conv4", "conv6"])
def test_with_two_unpadded_pools_the_smallest_image_has_ten_pixels(name):
    with pytest.raises(ConfigError, match=r"at least 10×10 pixels: .* got 9×9"):
        getattr(models, name)(3, 2, 9, 5, pools=2)


@pytest.mark.parametrize("name", models.NAMES[:-1])
@pytest.mark.parametrize(
    ("change", "message"),
    [({"channels": 0}, "`channels` .* got 0"), ({"width": -1}, "`width` .* got -1"), ({"outputs": 0}, "`outputs`")],
)
def test_counts_below_one_raise(name, change, message):
    arguments = {"channels": 3, "width": 2, "size": 32, "outputs": 5} | change
    with pytest.raises(ConfigError, match=rf"{name}: {message}"):
        getattr(models, name)(**arguments)


def test_mlp_without_flatten_raises():
    with pytest.raises(ConfigError, match="mlp has no feature maps"):
        models.build("mlp", (3,), 5, 8, flatten=False)
