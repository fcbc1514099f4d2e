import stat
from pathlib import Path

import pytest

from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import make_folder, write_atomically, write_output


def test_a_file_is_written_and_no_temporary_file_remains(tmp_path):
    write_atomically(tmp_path / "a.txt", "né\n")
    write_atomically(tmp_path / "b.bin", b"\x00\xff")
    assert (tmp_path / "a.txt").read_bytes() == b"n\xc3\xa9\n"
    assert (tmp_path / "b.bin").read_bytes() == b"\x00\xff"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.bin"]


@pytest.mark.parametrize("broken", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_leaves_the_old_file_and_no_temporary_file(tmp_path, monkeypatch, broken):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broken, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_other_users_can_read_what_is_written(tmp_path):
    write_atomically(tmp_path / "a.txt", "x")
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644


def test_a_folder_is_created_with_its_parents_and_may_exist(tmp_path):
    make_folder(tmp_path / "a" / "b", "the run")
    make_folder(tmp_path / "a" / "b", "the run")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_cannot_be_created_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Cannot use .*file/run for the run: .+ Choose another folder\."):
        make_folder(tmp_path / "file" / "run", "the run")
    with pytest.raises(InputError, match="Cannot use"):
        make_folder(tmp_path / "file", "the run")


def test_an_output_creates_its_folder_or_reports_the_reason(tmp_path, monkeypatch):
    write_output(tmp_path / "new" / "a.csv", "x")
    assert (tmp_path / "new" / "a.csv").read_text() == "x"
    with pytest.raises(InputError, match=r"Cannot write .*new: .+ Choose another name\."):
        write_output(tmp_path / "new", "x")
    monkeypatch.chdir(tmp_path)
    write_output(Path("bare.csv"), "y")
    assert (tmp_path / "bare.csv").read_text() == "y"
