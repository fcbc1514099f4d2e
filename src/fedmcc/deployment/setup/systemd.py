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
# Who ends it on purpose finds it ended: 130 is what it answers to SIGTERM.
SuccessExitStatus=130
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
    """The server with the recipe in its folder, for one run: a machine that restarts begins no other."""
    recipe = folder / "recipe.toml"
    paths = map(_quoted, (_program(), folder, recipe, folder / "runs" / "recipe-001"))
    return UNIT.format(
        how=f"Put the recipe at {recipe} and this into /etc/systemd/system; for another run change --run.",
        description="The server of a fedmcc federation",
        command="{} server start {} {} --run {}".format(*paths),
        cache=_quoted(f"FEDMCC_DATA={folder}/cache"),
        writes=_quoted(folder),
        devices="yes",
    )


def site_unit(name: str) -> str:
    """A site; where it lies on the site's machine is the site's to say."""
    folder = f"/srv/fedmcc/{name}"
    return UNIT.format(
        how=f"Make /opt/fedmcc, {folder} and /srv/images yours, and put this into /etc/systemd/system.",
        description=f"The site {name} of a fedmcc federation",
        command=f"/opt/fedmcc/bin/fedmcc site start {_quoted(folder)} --data {_quoted('/srv/images')}",
        cache=_quoted(f"FEDMCC_DATA={folder}/cache"),
        writes=_quoted(folder),
        devices="no",
    )


def _quoted(word: object) -> str:
    """A word for systemd, which parts at spaces and expands %; a folder with a $ was refused already."""
    text = str(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


def _program() -> Path:
    """The program as it is installed here."""
    return Path(sys.executable).with_name("fedmcc")
