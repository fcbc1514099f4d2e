"""Units for systemd: the server and a site as services that come back."""

import sys
from pathlib import Path

UNIT = """# {how}
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
Environment={cache}
# Best a user of its own: `User=fedmcc` here, and the folder belongs to it.
Restart=on-failure
RestartSec=30
KillMode=mixed
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={writes}
PrivateTmp=yes
# A GPU is a device.
PrivateDevices={devices}
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes

[Install]
WantedBy=multi-user.target
"""


def server_unit(folder: Path) -> str:
    """The server with the recipe in its folder."""
    return UNIT.format(
        how=f"Put the recipe at {folder}/recipe.toml, this file into /etc/systemd/system.",
        description="The server of a fedmcc federation",
        command=f"{_program()} server start {folder} {folder}/recipe.toml",
        cache=f"FEDMCC_DATA={folder}/cache",
        writes=folder,
        devices="yes",
    )


def site_unit(name: str) -> str:
    """A site; where it lies on the site's machine is the site's to say."""
    folder = f"/srv/fedmcc/{name}"
    return UNIT.format(
        how=f"Make /opt/fedmcc, {folder} and /srv/images yours, and put this into /etc/systemd/system.",
        description=f"The site {name} of a fedmcc federation",
        command=f"/opt/fedmcc/bin/fedmcc site start {folder} --data /srv/images",
        cache=f"FEDMCC_DATA={folder}/cache",
        writes=folder,
        devices="no",
    )


def _program() -> Path:
    """The program as it is installed here."""
    return Path(sys.executable).with_name("fedmcc")
