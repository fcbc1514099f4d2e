"""systemd units that run the server and the sites as services and restart them after a failure."""

import sys
from pathlib import Path

TEMPLATE = """# {instructions}
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
Environment={cache}
# Recommended: run the service as its own user (User=fedmcc), and make that user the owner of the folder.
Restart=on-failure
# fedmcc exits with 130 after SIGTERM: a service that was stopped on purpose is not restarted.
SuccessExitStatus=130
RestartSec=30
KillMode=mixed
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={writes}
PrivateTmp=yes
# A site may need the GPU, which is a device.
PrivateDevices={devices}
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes

[Install]
WantedBy=multi-user.target
"""


def server_unit(folder: Path) -> str:
    """The unit of the server. It names one run, so that a reboot resumes that run and starts no other."""
    recipe = folder / "recipe.toml"
    paths = map(_quoted, (_program(), folder, recipe, folder / "runs" / "recipe-001"))
    return TEMPLATE.format(
        instructions=f"Save the recipe as {recipe}; copy this file to /etc/systemd/system.\n"
        "# To start another run, change --run.",
        description="fedmcc federation server",
        command="{} server start {} {} --run {}".format(*paths),
        cache=_quoted(f"FEDMCC_DATA={folder}/cache"),
        writes=_quoted(folder),
        devices="yes",
    )


def site_unit(name: str) -> str:
    """The unit of a site, with example paths that the site adapts to its machine."""
    folder = f"/srv/fedmcc/{name}"
    return TEMPLATE.format(
        instructions=f"Adapt /opt/fedmcc, {folder} and /srv/images; copy this file to /etc/systemd/system.",
        description=f"fedmcc federation site {name}",
        command=f"/opt/fedmcc/bin/fedmcc site start {_quoted(folder)} --data {_quoted('/srv/images')}",
        cache=_quoted(f"FEDMCC_DATA={folder}/cache"),
        writes=_quoted(folder),
        devices="no",
    )


def _quoted(argument: object) -> str:
    """Quote an argument for systemd, which splits at spaces and expands %; a path has no $ (see `nginx`)."""
    text = str(argument).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


def _program() -> Path:
    """The path of the installed `fedmcc` program."""
    return Path(sys.executable).with_name("fedmcc")
