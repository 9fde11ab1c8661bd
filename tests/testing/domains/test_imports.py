"""The check `imports_cleanly` on an installed domain."""

from __future__ import annotations

import pytest

from gradhomog.testing import check_domain
from gradhomog.testing.snapshots import seeded_global_generators

pytestmark = pytest.mark.slow

PLUGIN = """
import numpy
from gradhomog import DomainSpec, hookimpl
from tests.testing.domains.good import Blots

numpy.random.seed(0)

@hookimpl
def gradhomog_domain():
    return DomainSpec(factory=Blots, summary="images of blots", variants=("one", "two"))
"""


def test_an_import_that_seeds_a_global_generator_is_found(gradhomog_install):
    name = gradhomog_install("seeding-blots", PLUGIN, kind="domains")
    with seeded_global_generators(0):  # `check_domain` also imports the plugin in this process
        report = check_domain(f"{name}:two", only="imports_cleanly")
    assert report.subject == "domain seeding_blots:two of seeding-blots 1.2 (seeding_blots)"
    assert report["imports_cleanly"].outcome == "failed"
    assert report["imports_cleanly"].message == "its import changes numpy's generator"
