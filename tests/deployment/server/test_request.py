"""The request for a run, in a file of the server; sites can read nothing of it."""

import json
import stat
from pathlib import Path

import pytest

from fedmcc.deployment.server.bundle import write_bundle
from fedmcc.deployment.server.request import JoinPolicy, RunRequest, take_request, write_request
from fedmcc.errors import InputError

NODES = (("north", 7), ("south", 18446744073709551615))
POLICY = JoinPolicy(("north", "south"), min_sites=2, wait=5.0, round_timeout=7.5, nodes=NODES)
REQUEST = RunRequest("seed = 1\n", Path("/runs/one"), POLICY, Path("/federations/ours"))


@pytest.mark.parametrize("request_", [REQUEST, RunRequest("", Path("run"), JoinPolicy())])
def test_a_request_is_read_once_as_it_was_written(request_, tmp_path):
    run_config = write_request(tmp_path, request_)
    assert take_request(tmp_path, run_config) == request_
    with pytest.raises(InputError, match="has no request"):
        take_request(tmp_path, run_config)


def test_only_the_servers_user_can_read_a_request(tmp_path):
    write_request(tmp_path, REQUEST)
    (file,) = (tmp_path / "requests").iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]


def test_two_requests_do_not_replace_each_other(tmp_path):
    requests = [REQUEST, REQUEST._replace(recipe="seed = 2\n")]
    configs = [write_request(tmp_path, each) for each in requests]
    assert [take_request(tmp_path, each) for each in configs] == requests


@pytest.mark.parametrize("name", ["", "../secret", "elsewhere"])
def test_a_run_without_a_request_is_refused(name, tmp_path):
    (tmp_path / "requests").mkdir()
    (tmp_path / "secret.json").write_text("{}")
    with pytest.raises(InputError, match="start it with `fedmcc server start`"):
        take_request(tmp_path, {"request": name})


def test_what_sites_can_read_has_no_site_node_path_or_option(tmp_path):
    from flwr.common.config import get_project_config

    run_config = write_request(tmp_path, REQUEST)
    assert run_config.keys() == {"protocol", "request"}
    write_bundle(tmp_path / "bundle", run_config)
    app = get_project_config(tmp_path / "bundle")["tool"]["flwr"]["app"]
    assert app["config"] == run_config
    shown = "".join(file.read_text() for file in (tmp_path / "bundle").iterdir()) + json.dumps(run_config)
    for secret in ("north", "south", "18446744073709551615", "/runs", "/federations", str(tmp_path)):
        assert secret not in shown


def test_the_bundle_names_the_apps_of_server_and_site(tmp_path):
    from flwr.common.config import get_project_config

    write_bundle(tmp_path / "bundle", {"protocol": 1})
    assert get_project_config(tmp_path / "bundle")["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "fedmcc.deployment.server.app:server_app",
        "clientapp": "fedmcc.deployment.site.app:client_app",
    }
