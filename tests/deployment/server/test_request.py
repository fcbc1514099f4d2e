"""The request for a run as Flower's flat configuration, and back."""

from pathlib import Path

import pytest

from fedmcc.deployment.server.bundle import write_bundle
from fedmcc.deployment.server.request import DEFAULTS, JoinPolicy, RunRequest, read_request
from fedmcc.errors import InputError

NODES = (("b", 7), ("a", 18446744073709551615))


def test_a_request_is_read_as_it_was_written():
    policy = JoinPolicy(("b", "a"), min_sites=2, wait=5.0, round_timeout=7.5, nodes=NODES)
    request = RunRequest("seed = 1\n", Path("/runs/one"), policy)
    assert read_request(request.run_config()) == request


def test_missing_keys_have_the_default_of_the_policy():
    assert read_request({"run": "/runs/one"}).policy == JoinPolicy()


def test_nodes_are_written_as_names_and_ids():
    request = read_request({"run": "here", "sites": "b,a", "nodes": "b:7,a:18446744073709551615"})
    assert request.policy.nodes == NODES


@pytest.mark.parametrize("nodes", ["a", "a:", "a:x", "a:1,b"])
def test_nodes_without_a_number_are_refused(nodes):
    with pytest.raises(InputError, match="nodes has"):
        read_request({"run": "here", "sites": "a", "nodes": nodes})


@pytest.mark.parametrize("change", [{"sites": "a,a"}, {"run": ""}])
def test_an_invalid_request_is_refused(change):
    with pytest.raises(InputError, match=r"name each site once|give the path"):
        read_request({"run": "/runs/one", **change})


def test_the_bundle_declares_all_options_of_a_request(tmp_path):
    from flwr.common.config import get_project_config

    write_bundle(tmp_path / "bundle")
    app = get_project_config(tmp_path / "bundle")["tool"]["flwr"]["app"]
    assert app["config"] == DEFAULTS
    assert app["components"] == {
        "serverapp": "fedmcc.deployment.server.app:server_app",
        "clientapp": "fedmcc.deployment.site.app:client_app",
    }
