"""Files are replaced completely or not at all."""

import pytest

from gradhomog.experiments.results.atomic_files import atomic_write


def test_a_file_is_unchanged_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file.txt"
    with atomic_write(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()
    with atomic_write(path) as temporary:
        temporary.write_text("second")
        assert path.read_text() == "first"
    assert [(file.name, file.read_text()) for file in path.parent.iterdir()] == [("file.txt", "second")]


def test_an_error_while_writing_keeps_the_previous_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")

    def write():
        with atomic_write(path) as temporary:
            temporary.write_text("hal")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write()
    assert path.read_text() == "before"


def test_a_removed_folder_is_not_created_again(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "removed" / "file.txt") as temporary:
        temporary.write_text("content")
    assert not list(tmp_path.iterdir())
