"""A site answers with the program that is installed there, whatever program the server sends."""

import pytest
from flwr.supernode.runtime import run_clientapp

from fedmcc.deployment.site import clientapp
from fedmcc.deployment.site.app import client_app

REPLACED = ("install_from_fab", "install_app_dependencies", "get_load_client_app_fn")


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in REPLACED:
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))


def test_the_app_of_the_server_is_neither_installed_nor_loaded(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    clientapp.use_installed_app()
    assert run_clientapp.install_from_fab(b"not even an archive", skip_prompt=True) is None
    assert run_clientapp.install_app_dependencies("evil", launch_id="1") is None
    load = run_clientapp.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert load("publisher/evil", "1.0.0", "0" * 64) is client_app
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", REPLACED)
def test_an_unknown_version_of_flower_is_refused(name, monkeypatch) -> None:
    monkeypatch.delattr(run_clientapp, name)
    with pytest.raises(ImportError, match=f"Flower has no {name}"):
        clientapp.use_installed_app()
