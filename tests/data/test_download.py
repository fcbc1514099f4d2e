import hashlib
import io
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from fedmcc.data.cache import cache_folder
from fedmcc.data.download import DownloadBar, Remote, fetch, search_folders
from fedmcc.data.mnist import MNIST
from fedmcc.errors import InputError

CONTENT = b"the official file" * 1000
CHECKSUM = "md5:" + hashlib.md5(CONTENT).hexdigest()


def remote(server: ThreadingHTTPServer, *kinds: str) -> Remote:
    mirrors = tuple(f"http://127.0.0.1:{server.server_port}/{kind}/" for kind in kinds)
    return Remote("file.bin", CHECKSUM, mirrors)


def test_a_correct_file_is_kept_and_requested_once(server, tmp_path, capfd):
    for _ in range(2):
        assert fetch(remote(server, "right"), tmp_path / "new").read_bytes() == CONTENT
    assert server.requested == ["right"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("wrong", "wrong checksum"),
        ("broken", "closed the connection before the end"),
        ("absent", "answered 404"),
    ],
)
def test_failed_download_gives_the_reason_and_leaves_no_file(server, tmp_path, kind, reason):
    with pytest.raises(InputError, match=rf"file\.bin: .*{reason}.*by hand.*{kind}/file\.bin .*{tmp_path}"):
        fetch(remote(server, kind), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_can_be_repeated(server, tmp_path):
    with pytest.raises(InputError):
        fetch(remote(server, "broken"), tmp_path)
    assert fetch(remote(server, "right"), tmp_path).read_bytes() == CONTENT


def test_the_second_mirror_is_used_when_the_first_fails(server, tmp_path):
    assert fetch(remote(server, "wrong", "right"), tmp_path).read_bytes() == CONTENT
    assert server.requested == ["wrong", "right"]


def test_offline_error_gives_the_address_and_the_folder_of_the_file(monkeypatch, cache):
    monkeypatch.setattr(MNIST, "mirrors", ("http://127.0.0.1:9/",))
    with pytest.raises(InputError) as error:
        MNIST().load()
    address, folder = "http://127.0.0.1:9/train-images-idx3-ubyte.gz", cache / "mnist"
    assert f"127.0.0.1 cannot be reached. Download it by hand from {address} and put it in {folder}." in str(
        error.value
    )


def test_download_into_a_file_instead_of_a_folder_is_an_input_error(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="Could not write"):
        fetch(remote(server, "right"), tmp_path / "file")


def test_cache_folder_is_the_users_unless_the_environment_names_one(monkeypatch, cache):
    assert cache_folder() == cache
    monkeypatch.delenv("FEDMCC_DATA")
    assert cache_folder().name == "fedmcc"


def test_root_is_searched_itself_before_the_folder_of_the_data_set(tmp_path):
    assert search_folders(tmp_path, "mnist") == (tmp_path, tmp_path / "mnist")
    assert search_folders(Path("~/data"), "mnist")[0] == Path.home() / "data"


def test_bar_ends_full_whatever_the_size_of_the_last_piece():
    with Progress(console=Console(file=io.StringIO())) as progress:
        bar = DownloadBar("file.bin", progress)
        bar.total = 100
        bar.update(64)
        bar.update(64)
        bar.reset()
        bar.update(100)
        bar.close()
        assert progress.tasks[0].percentage == 100
