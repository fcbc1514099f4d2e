"""systemd units that run the server and the sites as services and restart them after a failure."""

import shlex
import sys
from pathlib import Path

from fedmcc.deployment.setup.layout import is_address

TEMPLATE = """# {instructions}
# fedmcc and this folder must not be in a home folder: the service cannot read /home and /root. Once:
#   useradd --system --no-create-home fedmcc && chown -R fedmcc: {folder}
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
Environment={cache}
User=fedmcc
Restart=on-failure
# fedmcc exits with 130 after SIGTERM: a service that was stopped on purpose is not restarted.
SuccessExitStatus=130
RestartSec=30
KillMode=mixed
TimeoutStopSec=60
UMask=0077
MemoryMax=80%
TasksMax=1024
LimitCORE=0

# Files: the service writes to its folder only, and does not see home folders. It can read what its user can.
ProtectSystem=strict
ReadWritePaths={writes}
ProtectHome=yes
PrivateTmp=yes
{devices}
# Processes: those of other users are hidden, and with them the tokens in the arguments of Flower's programs
# from this service; mount /proc with hidepid=2 to hide those of this service from other users.
ProtectProc=invisible
# PyTorch reads /proc/cpuinfo and /proc/meminfo.
ProcSubset=all
PrivateUsers=yes
PrivateIPC=yes
RemoveIPC=yes
KeyringMode=private

# Network: {network}
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
{addresses}
# Privileges and the kernel.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
# MemoryDenyWriteExecute is not set: PyTorch compiles its convolutions while it runs and fails with it.

[Install]
WantedBy=multi-user.target
"""

SERVER_NETWORK = """ports below 1024 are denied. If the addresses of the sites are known, allow no others:
#   IPAddressDeny=any
#   IPAddressAllow=localhost ADDRESS ADDRESS"""
SITE_NETWORK = "this machine and the server."
SITE_NETWORK_BY_NAME = """systemd filters by address. If that of the server is fixed, allow no other:
#   IPAddressDeny=any
#   IPAddressAllow=localhost ADDRESS, and the name server"""
GPU_DEVICES = """# Of the devices, a site needs the GPU.
DevicePolicy=closed
DeviceAllow=char-nvidia* rw
DeviceAllow=char-drm rw
DeviceAllow=char-kfd rw
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
        folder=shlex.quote(str(folder)),
        writes=_quoted(folder),
        devices="PrivateDevices=yes\n",
        network=SERVER_NETWORK,
        addresses="",
    )


def site_unit(name: str, host: str) -> str:
    """The unit of a site that connects to `host`, with example paths that the site adapts to its machine."""
    folder, address = f"/srv/fedmcc/{name}", is_address(host)
    return TEMPLATE.format(
        instructions=f"Adapt /opt/fedmcc, {folder} and /srv/images; copy this file to /etc/systemd/system.",
        description=f"fedmcc federation site {name}",
        command=f"/opt/fedmcc/bin/fedmcc site start {_quoted(folder)} --data {_quoted('/srv/images')}",
        cache=_quoted(f"FEDMCC_DATA={folder}/cache"),
        folder=folder,
        writes=_quoted(folder),
        devices=GPU_DEVICES,
        network=SITE_NETWORK if address else SITE_NETWORK_BY_NAME,
        addresses=f"IPAddressDeny=any\nIPAddressAllow=localhost {host}\n" if address else "",
    )


def _quoted(argument: object) -> str:
    """Quote an argument for systemd, which splits at spaces and expands %; a path has no $ (see `nginx`)."""
    text = str(argument).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


def _program() -> Path:
    """The path of the installed `fedmcc` program."""
    return Path(sys.executable).with_name("fedmcc")
