"""A file is replaced whole or not at all."""

from __future__ import annotations

import pytest

from gradhomog.experiments.results.atomic import replacing


def test_a_file_is_there_as_it_was_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with replacing(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()
    with replacing(path) as temporary:
        temporary.write_text("second")
        assert path.read_text() == "first"
    assert [(found.name, found.read_text()) for found in path.parent.iterdir()] == [("file.txt", "second")]


def test_what_fails_while_writing_leaves_the_previous_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")

    def write():
        with replacing(path) as temporary:
            temporary.write_text("hal")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write()
    assert path.read_text() == "before"
