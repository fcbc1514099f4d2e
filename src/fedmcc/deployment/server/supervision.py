"""Watches the programs of a server while a run is followed: restarts them, limits logs, warns of expiry."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedmcc.deployment.flower import pid_files, processes
from fedmcc.deployment.flower.logs import shorten_log
from fedmcc.deployment.flower.programs import FlowerError
from fedmcc.deployment.server.launch import (
    Program,
    RunningServer,
    register_new_sites,
    register_sites,
    registered_keys,
)
from fedmcc.deployment.server.request import RunRequest
from fedmcc.deployment.server.submit import follow, submit
from fedmcc.deployment.setup.create import expiry_warning
from fedmcc.errors import InputError
from fedmcc.runs.directory import Run
from fedmcc.runs.experiment import Finished, Scored
from fedmcc.training.loop import Step

MAX_RESTARTS = 5  # of one program within RESTART_WINDOW; the next time it ends, the server ends
RESTART_WINDOW = 3600.0  # seconds
MAX_RESTART_DELAY = 60.0  # seconds; the first restart is immediate
EXPIRY_SECONDS = 3600.0  # between two looks at the certificates


class SuperlinkEndedError(FlowerError):
    """Flower's server has ended, and with it Flower's run."""


@dataclass
class Restarts:
    """Counts the restarts of a program and delays them."""

    name: str
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    times: list[float] = field(default_factory=list)

    def wait(self) -> None:
        """Wait before the next restart, longer each time; raises InputError after too many."""
        now = self.clock()
        self.times = [each for each in self.times if now - each < RESTART_WINDOW]
        if len(self.times) >= MAX_RESTARTS:
            raise InputError(
                f"{self.name} ended {MAX_RESTARTS + 1} times within an hour: "
                "read the logs of the server, then start it again."
            )
        if self.times:
            self.sleep(min(2.0 ** len(self.times), MAX_RESTART_DELAY))
        self.times.append(now)


class Supervisor:
    """Keeps the programs of a server running; `say` shows a sentence to the operator."""

    def __init__(self, server: RunningServer, say: Callable[[str], None]) -> None:
        self.server, self.say = server, say
        self.superlink_restarts, self.nginx_restarts = Restarts("Flower's server"), Restarts("nginx")
        self.warned, self.looked_at_expiry = "", time.monotonic()
        self.looked_at_sites = 0.0 if server.keys else self._sites_changed()  # without keys: no registration

    def follow(
        self, request: RunRequest, run_id: str, rounds: Mapping[str, int]
    ) -> Iterator[Step | Scored | Finished]:
        """Follow a run; if Flower's server ends, submit the run again, which resumes from its last round."""
        while True:
            try:
                yield from follow(self.server, Run(request.run), run_id, rounds, self.check)
                return
            except FlowerError:
                if not _has_ended(self.server.superlink):
                    raise
            run_id = self._resubmit(request)

    def check(self) -> None:
        """Start nginx again if it ended; raises SuperlinkEndedError if Flower's server ended."""
        if _has_ended(self.server.nginx):
            self._restart_nginx()
        self._bound_logs()
        self._register_new()
        if time.monotonic() - self.looked_at_expiry > EXPIRY_SECONDS:
            self.warn_of_expiry()
        if _has_ended(self.server.superlink):
            raise SuperlinkEndedError("Flower's server has ended")

    def warn_of_expiry(self) -> None:
        """Say once that a certificate expires soon, and once that it has expired."""
        self.looked_at_expiry = time.monotonic()
        try:
            warning = expiry_warning(self.server.operator) or ""
        except InputError as error:
            warning = str(error)
        if warning and warning != self.warned:
            self.say(warning)
        self.warned = warning

    def _register_new(self) -> None:
        """Register sites that the operator added; if that fails, it is tried again at the next change."""
        changed = self._sites_changed()
        if changed == self.looked_at_sites:
            return
        self.looked_at_sites = changed
        try:
            for name in register_new_sites(self.server):
                self.say(f"{name} can connect from now on; it takes part from the next round.")
        except (FlowerError, InputError) as error:
            self.say(f"New sites could not be registered: {error}")

    def _sites_changed(self) -> float:
        operator = self.server.operator
        return max(_changed(operator.spec_file), _changed(operator.public_key("any").parent))

    def _restart_nginx(self) -> None:
        nginx = self.server.nginx
        while nginx and nginx.ended:
            self.nginx_restarts.wait()
            self.say("nginx ended: starting it again.")
            try:
                nginx.restart()
            except InputError as error:
                self.say(str(error))

    def _resubmit(self, request: RunRequest) -> str:
        """Start Flower's server again and submit the run; returns Flower's new id of the run."""
        while True:
            self.superlink_restarts.wait()
            self.say("Flower's server ended: starting it again; the run continues from its last round.")
            try:
                self._restart_superlink()
                return submit(self.server, request)
            except (FlowerError, InputError) as error:
                self.say(str(error))

    def _restart_superlink(self) -> None:
        server, home = self.server, self.server.operator.flower_home
        nginx = pid_files.session_of(home, server.nginx.process.pid) if server.nginx else []
        processes.terminate_all(home, nginx)  # Flower's process of the run would write to its directory
        if server.superlink:
            server.superlink.restart()
        server.keys = registered_keys(server.operator)
        server.nodes = register_sites(server.operator, server.flower)

    def _bound_logs(self) -> None:
        for name in ("flower.log", "refused.log", "proxy.log"):
            shorten_log(self.server.operator.logs / name)


def _changed(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _has_ended(program: Program | None) -> bool:
    return program is not None and program.ended
