"""Downloads of pretrained encoders, from a server on this machine that speaks as the hub does."""

import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedmcc.errors import InputError
from fedmcc.networks.hub import FILES, fetch
from fedmcc.networks.huggingface import HuggingFaceOptions

constants = pytest.importorskip("huggingface_hub.constants")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def published(encoder_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    encoder_files.write_folder(folder, "resnet")
    (folder / "modeling.py").write_text("raise SystemExit")  # code is not downloaded
    return folder


@pytest.fixture
def hub(published, monkeypatch):
    """The requests that the server got."""
    requests = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.wfile.write(self.answer())

        def answer(self):
            requests.append((self.command, self.path, self.headers.get("Authorization")))
            start = f"/owner/tiny/resolve/{COMMIT}/"
            path = published / self.path.removeprefix(start)
            found = self.path.startswith(start) and path.is_file()
            content = path.read_bytes() if found else b""
            self.send_response(200 if found else 404)
            if not found:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return content

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield requests
        server.shutdown()


def test_the_files_of_a_commit_become_a_folder_that_an_encoder_reads(hub, published, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    identity = fetch("owner/tiny", COMMIT, tmp_path / "tiny")
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == sorted(FILES)
    assert all((tmp_path / "tiny" / name).read_bytes() == (published / name).read_bytes() for name in FILES)
    assert HuggingFaceOptions(tmp_path / "tiny", sha256=identity).build(3, 32).features == 16
    assert {authorization for _, _, authorization in hub} == {None}


def test_files_with_another_checksum_are_not_kept(hub, tmp_path):
    with pytest.raises(InputError, match=r"have the SHA-256 [0-9a-f]{64}, not 00: none were kept"):
        fetch("owner/tiny", COMMIT, tmp_path / "tiny", "00")
    assert list(tmp_path.glob("*tiny*")) == []


@pytest.mark.parametrize(
    ("name", "revision", "reason"),
    [
        ("owner/tiny", "main", "give the full commit of the model, 40 hexadecimal digits"),
        ("tiny", COMMIT, "write it as OWNER/MODEL"),
        ("owner/tiny", COMMIT[::-1], "The hub has no config.json of owner/tiny"),
    ],
)
def test_a_model_that_cannot_be_fetched_is_named(hub, tmp_path, name, revision, reason):
    with pytest.raises(InputError, match=reason):
        fetch(name, revision, tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()


def test_an_existing_folder_is_not_overwritten(hub, tmp_path):
    with pytest.raises(InputError, match=r"exists: give another folder as --out"):
        fetch("owner/tiny", COMMIT, tmp_path)
    assert hub == []


def test_dinov2_small_is_fetched_once_and_checked(hub, tmp_path, monkeypatch):
    from fedmcc.networks import ENCODERS, dinov2

    monkeypatch.setattr(dinov2, "MODEL", "owner/tiny")
    monkeypatch.setattr(dinov2, "COMMIT", COMMIT)
    with pytest.raises(InputError, match="none were kept"):
        ENCODERS["dinov2-small"]().resolve()
    own = ENCODERS["dinov2-small"](sha256=fetch("owner/tiny", COMMIT, tmp_path / "tiny"))
    hub.clear()
    assert own.build(3, 32).features == 16
    assert hub
    hub.clear()
    assert own.resolve() == own
    assert not hub
