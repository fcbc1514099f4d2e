"""Rounds with many light sites through nginx, TLS and Flower's server.

python benchmarks/sites.py [--sites 40] [--rounds 3] [--stalled 1] [--round-timeout 300] [--json FILE]
    [--encoder resnet18] [--width 96] [--idle 30] [--junk 300] [--link 150]

The sites are threads of one process that answer Flower's fleet interface. The first may be stalled (announce
an upload and not finish it), send junk or have a slow link. CPU and memory are those of each program.
"""

import argparse
import importlib.util
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from PIL import Image

from fedmcc import config
from fedmcc.deployment.flower import processes
from fedmcc.deployment.flower.packets import unpack
from fedmcc.deployment.server.launch import RunningServer, running_server
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.submit import submit
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.deployment.site.app import client_app
from fedmcc.runs.directory import Run
from measuring import show, write_json
from slow_link import slow_link

TIMEOUT = 3600.0  # seconds
POLL_SECONDS = 3.0  # in which Flower's client asks for work
IMAGES = 8  # of a site
NONE = (0.0, 0)  # seconds and MB of a program that does not run
SHOWN = ("flower-superlink", "flwr-serverapp", "nginx", "sites")
PROGRAM, PEAK = re.compile("(flower|flwr)-[a-z]+|nginx"), re.compile(r"VmHWM:\s+(\d+) kB")
COLUMNS = (
    *("round", "seconds", "waiting", "transport", "training", "participants", "kilobytes"),
    *(f"cpu {name}" for name in SHOWN),
)


def main() -> None:
    """Run the rounds and print each, the start of the server, and its use of the machine."""
    options = read_options()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options)
    show(COLUMNS, [[f"{row[column]:g}" for column in COLUMNS] for row in figures["rounds"]])
    print(f"start {figures['start']:.1f} s, CPU in ms for a poll: {figures['idle']}")
    print(f"peak memory in MB before the run: {figures['memory before']}, after: {figures['memory']}")
    write_json(options.json, figures)


def measure(home: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each round and of the start, CPU seconds, and peak memory in MB by process."""
    names = tuple(f"site-{number:03}" for number in range(options.sites))
    spec = FederationSpec("127.0.0.1", processes.free_port(), processes.free_port(), names)
    operator = create_federation(home / "federation", spec, 1)
    needed = options.sites - max(options.stalled, bool(options.junk or options.link))
    policy = JoinPolicy(min_sites=needed, wait=TIMEOUT, round_timeout=options.round_timeout)
    began = time.monotonic()
    with running_server(operator) as server, light_sites(server, home, options) as sites:
        start = time.monotonic() - began
        idle = polling(operator, sites, options.idle)
        submit(server, RunRequest(recipe(options), home / "run", policy))
        began_usage = usage(operator)
        rows = wait_for(home / "run", options.rounds, operator)
    figures = [shown(row, earlier) for earlier, row in pairwise([{"usage": began_usage}, *rows])]
    memory = {name: megabytes for name, (_, megabytes) in rows[-1]["usage"].items()}
    before = {name: megabytes for name, (_, megabytes) in began_usage.items()}
    return {"start": start, "idle": idle, "rounds": figures, "memory before": before, "memory": memory}


def shown(row: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """The figures of a round."""
    spent = {
        f"cpu {name}": round(row["usage"].get(name, NONE)[0] - earlier["usage"].get(name, NONE)[0], 1)
        for name in SHOWN
    }
    counts = {"participants": len(row["participants"]), "kilobytes": row["bytes_up"] // 1000}
    for event in (*row["refused"], *row.get("reasons", {}).items()):
        print(f"round {row['round']}: {event}")
    return {key: round(row[key], 1) for key in COLUMNS[:5]} | counts | spent


def polling(operator: OperatorFolder, sites: "Sites", seconds: float) -> dict[str, float]:
    """Milliseconds of CPU that each program of the server spends on one request for work, while all wait."""
    if not seconds:
        return {}
    time.sleep(POLL_SECONDS)
    before, polls = usage(operator), sites.polls
    time.sleep(seconds)
    after, polls = usage(operator), sites.polls - polls
    spent = {name: 1000 * (after[name][0] - before[name][0]) / polls for name in SHOWN if name in after}
    return {"polls": polls, **spent}


@contextmanager
def light_sites(server: RunningServer, home: Path, options: argparse.Namespace) -> Iterator["Sites"]:
    """Answer all messages of the server until the block ends."""
    images = home / "images"
    images.mkdir()
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{number}.png")
    sites, spec = Sites(options), server.operator.read_spec()
    with ExitStack() as stack:
        threads = []
        for index, name in enumerate(server.nodes):
            folder, port = server.operator.site(name), spec.port
            if options.link and not index:
                port = stack.enter_context(slow_link(port, 1000 * options.link))
            own = {"client": name, "folder": str(folder.path), "state-dir": str(home / "states" / name)}
            address = f"{spec.host}:{port}"
            site = sites.fleet.connect(address, folder.authority_certificate, folder.key)
            arguments = (site, {**own, "data": str(images)}, index)
            threads.append(threading.Thread(target=sites.answer_all, args=arguments, daemon=True))
            threads[-1].start()
        yield sites
        sites.stop.set()
        for thread in threads:
            thread.join(10)


class Sites:
    """What all sites share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.fleet, self.stop = options, load_fleet(), threading.Event()
        self.polls = 0

    def answer_all(self, site: Any, own: dict[str, str], index: int) -> None:
        """Answer the messages to one site."""
        while not self.stop.is_set():
            try:
                message = site.pull()
                self.polls += 1
                if message is None:
                    self.stop.wait(POLL_SECONDS)
                else:
                    context = Context(message.metadata.run_id, site.node, own, RecordDict(), {})
                    self.answer(site, message, client_app(message, context), index)
            except Exception as error:  # the server of a finished run closes connections
                if not self.stop.is_set():
                    print(f"{own['client']}: {type(error).__name__}: {error}", file=sys.stderr)
                    self.stop.wait(1.0)

    def answer(self, site: Any, message: Message, reply: Message, index: int) -> None:
        """Send a reply; a stalled site does not upload its update, and another one adds junk to it."""
        trained = message.metadata.message_type == "train"
        if trained and not index and self.options.junk:
            data = np.random.default_rng(0).bytes(1_000_000 * self.options.junk)
            content = unpack(reply.content)
            content["junk"] = ArrayRecord({"numbers": Array("uint8", (len(data),), "fedmcc.numbers", data)})
            site.reply(message, content)
        else:
            site.push(reply, upload=not (trained and index < self.options.stalled))


def load_fleet() -> ModuleType:
    """The module of the tests with sites that speak Flower's fleet interface."""
    path = Path(__file__).parents[1] / "tests" / "system" / "fleet.py"
    spec = importlib.util.spec_from_file_location("fleet", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is missing.")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fleet"] = module
    spec.loader.exec_module(module)
    return module


def recipe(options: argparse.Namespace) -> str:
    """A recipe whose updates have about 20 kB, or the size of another encoder."""
    method = {"name": "fedsimclr", "rounds": options.rounds, "epochs": 1, "hidden": 24, "projections": 16}
    size = 8 if options.encoder == "convnet" else 32
    encoder = {"width": options.width} if options.encoder == "convnet" else {"name": options.encoder}
    table = {
        "clusters": 2,
        "threads": 1,
        "device": "cpu",
        "data": {"name": "folder", "size": size},
        "views": {"preset": "digits", "size": size},
        "encoder": encoder,
        "method": method,
        "training": {"batch_size": IMAGES},
    }
    return config.dump(config.parse(table))


def wait_for(run: Path, rounds: int, operator: OperatorFolder) -> list[dict[str, Any]]:
    """Wait for all rounds; returns their rows, with what the server's processes have used by their end."""
    until, rows = time.monotonic() + TIMEOUT, []
    while len(rows) < rounds:
        if time.monotonic() > until:
            raise SystemExit("The rounds did not finish in time.")
        time.sleep(0.5)
        rows += [row | {"usage": usage(operator)} for row in Run(run).rows()[len(rows) :]]
    return rows


def usage(operator: OperatorFolder) -> dict[str, tuple[float, int]]:
    """Seconds of CPU and peak memory in MB of each program of the server, and of the sites."""
    used: dict[str, tuple[float, int]] = {}
    for process in (*processes.processes_of(operator.flower_home), os.getpid()):
        folder = Path(f"/proc/{process}")
        words = folder.joinpath("cmdline").read_text().split("\0")
        name = next((found[0] for word in words if (found := PROGRAM.search(word))), "other")
        name = "sites" if process == os.getpid() else name
        ticks = folder.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
        peak = PEAK.search(folder.joinpath("status").read_text())
        seconds, megabytes = used.get(name, (0.0, 0))
        seconds += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        used[name] = (seconds, max(megabytes, int(peak[1]) // 1000 if peak else 0))
    return used


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stalled", type=int, default=0, help="sites that do not finish their uploads")
    parser.add_argument("--round-timeout", type=float, default=300.0)
    parser.add_argument("--encoder", choices=("convnet", "resnet18"), default="convnet")
    parser.add_argument("--width", type=int, default=5, help="of the convnet")
    parser.add_argument("--idle", type=float, default=0.0, help="seconds in which polls are measured")
    parser.add_argument("--junk", type=int, default=0, help="MB beside each update of the first site")
    parser.add_argument("--link", type=float, default=0.0, help="kB/s of the first site in each direction")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
