"""The programs of a server: nginx accepts sites wherever it listens."""

from pathlib import Path

import pytest

from fedmcc.deployment.flower.processes import check_port_free, free_port, running, wait_until
from fedmcc.deployment.server.launch import _accepts_sites
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec, make_private_folders
from fedmcc.deployment.setup.nginx import command_line, local_host
from fedmcc.errors import InputError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "2001:db8::1", "fed.example.org"])
def test_the_proxy_is_reached_wherever_it_listens(host: str, nginx: str, tmp_path: Path) -> None:
    spec = FederationSpec(host, free_port(), free_port(), ("north",))
    operator = create_federation(tmp_path / "federation", spec, 1)
    make_private_folders([operator.flower_home, operator.logs, operator.server / "proxy"])
    check_port_free(spec.port, local_host(spec))
    with running(command_line(nginx, operator), operator.flower_home, operator.logs / "proxy.log"):
        assert wait_until(lambda: _accepts_sites(operator, spec), 30.0)
        with pytest.raises(InputError, match="in use by another program"):
            check_port_free(spec.port, local_host(spec))
