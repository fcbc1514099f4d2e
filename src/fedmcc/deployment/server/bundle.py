"""The app bundle that `flwr run` submits: where the apps are and which options they take."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from fedmcc.deployment.server.membership import JoinPolicy

DEFAULTS: dict[str, Any] = {  # of run_config: every key there is
    "recipe": "",
    "run": "",
    "sites": "",
    "nodes": "",
    "min-sites": JoinPolicy().least,
    "round-timeout": JoinPolicy().timeout,
    "wait": JoinPolicy().wait,
}


def write_bundle(folder: Path) -> None:
    """What `flwr run` takes: no code, since fedmcc is installed everywhere."""
    app = {
        "publisher": "fedmcc",
        "components": {
            "serverapp": "fedmcc.deployment.app:server_app",
            "clientapp": "fedmcc.deployment.app:client_app",
        },
        "config": DEFAULTS,
    }
    project = {
        "name": "fedmcc-federation",
        "version": version("fedmcc"),
        "description": "Clusters images that cannot leave their owners",
        "license": "Apache-2.0",
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    (folder / "pyproject.toml").write_text(text)
