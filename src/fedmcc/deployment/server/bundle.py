"""The app bundle that `flwr run` submits: the addresses of the two apps, and the `run_config` for all."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w


def write_bundle(folder: Path, run_config: Mapping[str, Any]) -> None:
    """Write the bundle; it contains no code, since fedmcc is installed on every machine."""
    app = {
        "publisher": "fedmcc",
        "components": {
            "serverapp": "fedmcc.deployment.server.app:server_app",
            "clientapp": "fedmcc.deployment.site.app:client_app",
        },
        "config": dict(run_config),
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
