"""Names of networks and inputs that do not suit them."""

import typing

import pytest

from gradhomog import ConfigError
from gradhomog.experiments import models
from gradhomog.experiments.config.schema import Network


def test_run_files_take_exactly_the_names_there_are():
    assert typing.get_args(typing.get_type_hints(Network)["name"]) == models.NAMES


@pytest.mark.parametrize(("name", "near"), [("Conv4", "conv4"), ("resnet-12", "resnet12"), ("mpl", "mlp")])
def test_an_unknown_name_is_answered_with_the_nearest_and_all(name, near):
    with pytest.raises(ConfigError, match=rf"`network.name` must be one of conv4, .*, mlp; got '{name}'.* '{near}'\?"):
        models.build(name, (3, 32, 32), 5, 8)


def test_a_name_like_no_other_gets_no_suggestion():
    with pytest.raises(ConfigError, match=r"got 'transformer'\.$"):
        models.build("transformer", (3, 32, 32), 5, 8)


@pytest.mark.parametrize("name", models.NAMES[:-1])
@pytest.mark.parametrize("shape", [(1,), (3, 32, 28)])
def test_networks_for_images_refuse_vectors_and_oblong_images(name, shape):
    with pytest.raises(ConfigError, match=rf"{name} takes square images; .*\({shape[0]},"):
        models.build(name, shape, 5, 8)


@pytest.mark.parametrize("name", ["conv4", "conv6", "resnet12"])
def test_images_that_the_pools_reduce_to_nothing_are_refused_with_the_smallest_size(name):
    models.build(name, (3, 16, 16), 5, 2)
    with pytest.raises(ConfigError, match=rf"{name} needs images of at least 16×16 pixels: .* got 15×15"):
        models.build(name, (3, 15, 15), 5, 2)


@pytest.mark.parametrize("name", ["conv4", "conv6"])
def test_the_smallest_image_of_two_unpadded_pools_is_ten_pixels(name):
    with pytest.raises(ConfigError, match=r"at least 10×10 pixels: .* got 9×9"):
        getattr(models, name)(3, 2, 9, 5, pools=2)


@pytest.mark.parametrize("name", models.NAMES[:-1])
@pytest.mark.parametrize(
    ("changed", "message"),
    [({"channels": 0}, "`channels` .* got 0"), ({"width": -1}, "`width` .* got -1"), ({"outputs": 0}, "`outputs`")],
)
def test_counts_below_one_are_refused(name, changed, message):
    given = {"channels": 3, "width": 2, "size": 32, "outputs": 5} | changed
    with pytest.raises(ConfigError, match=rf"{name}: {message}"):
        getattr(models, name)(**given)


def test_vectors_have_no_maps():
    with pytest.raises(ConfigError, match="mlp has no maps"):
        models.build("mlp", (3,), 5, 8, flatten=False)
