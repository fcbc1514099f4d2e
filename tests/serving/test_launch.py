"""Addresses that cannot be used and missing packages are refused in one sentence."""

import socket
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.errors import InputError
from fedmcc.runs.directory import create_run
from fedmcc.serving.launch import _bind
from fedmcc.serving.security import Access, is_loopback, new_token


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_only_this_machine_can_reach_a_loopback_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "localhost.example.org", ""])
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_the_service_and_the_server_of_a_federation_have_different_ports() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    found = [commands["serve"], commands["federation"].commands["init"]]
    serve, federation = ({one.name: one.default for one in each.params}["port"] for each in found)
    assert serve not in (federation, federation + 1)  # the second one is Flower's own


def test_a_port_in_use_and_an_unknown_address_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"Cannot listen on 127.0.0.1, port {port}: .*--host and --port"):
            _bind("127.0.0.1", port)
    with pytest.raises(InputError, match=r"Cannot listen on 999\.1\.1\.1"):
        _bind("999.1.1.1", 80)


def test_a_missing_package_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_run(tmp_path / "run", "", {})
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fedmcc.serving.launch", raising=False)
    result = CliRunner().invoke(app, ["serve", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "The service needs the package uvicorn" in result.stderr
    assert "pip install 'fedmcc[serve]'" in result.stderr


def test_tokens_are_long_random_and_not_shown() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert len(first) >= 43  # 256 bits in base 64
    assert first not in repr(Access(loopback=True, token=first))
