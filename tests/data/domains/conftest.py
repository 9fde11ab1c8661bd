"""Fixtures: a glyph domain rendered once."""

import pytest

from gradhomog_data.domains import glyphs


@pytest.fixture(scope="session")
def greek(tmp_path_factory):
    """`glyphs:greek` with default options, rendered once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return glyphs.glyphs("greek")
