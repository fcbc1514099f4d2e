"""Time and memory of the stages that train nothing, against clients and clusters.

python benchmarks/growth.py [--quick] [--json FILE]

Each client has 100 images of 512 features. A row is from a fresh process with one thread: CPU seconds of all
clients and of the server, the bytes of all replies, which a server holds until it combines them, and its peak
memory beyond them.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedmcc.messages import Update
from fedmcc.methods.base import Stage
from fedmcc.methods.informative import InformativeClustering
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.state_dicts import copy_into
from fedmcc.training.memory import bytes_in_use
from fedmcc.training.torch_setup import set_up_torch
from measuring import parser, peak_bytes, reset_peak, run_fresh, show, write_json

FEATURES, IMAGES = 512, 100
CASES = ((10, 10), (100, 10), (1000, 10), (100, 50), (100, 200), (1000, 200))  # clients, clusters
QUICK_CASES = 3  # with `--quick`
MAX_HELD = 2**31  # bytes of replies; beyond it each reply is computed again when it is read


def main() -> None:
    """A row for each stage and case."""
    made = parser(__doc__, repeats=1, quick=0)
    made.add_argument("--measure", nargs=2, type=int, help=argparse.SUPPRESS)
    options = made.parse_args()
    set_up_torch(1)
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    cases = CASES if options.repeats else CASES[:QUICK_CASES]
    rows = [row for case in cases for row in run_fresh(__file__, "--measure", *case)]
    headings = ("stage", "clients", "clusters", "clients, s", "server, s", "replies, MB", "server's peak, MB")
    show(headings, ([str(cell) for cell in row.values()] for row in rows))
    write_json(options.json, rows)


class Replies(Sequence[Update]):
    """Replies of all clients; if they are too large to hold together, each is computed when it is read."""

    def __init__(self, net: Network, stage: Stage, clients: int, clusters: int) -> None:
        self.net, self.stage, self.clients, self.clusters = net, stage, clients, clusters
        self.seconds, self.bytes = 0.0, 0
        first = self._make(0)
        size = sum(value.nbytes for value in first.extras.values())
        self.held = [first, *map(self._make, range(1, clients))] if size * clients < MAX_HELD else None
        self.bytes = size * clients

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: Any) -> Any:
        return self._make(client) if self.held is None else self.held[client]

    def __iter__(self) -> Iterator[Update]:
        return (self[client] for client in range(self.clients))

    def _make(self, client: int) -> Update:
        features = draw(client, self.clusters)
        start = time.process_time()
        extras = self.stage.extras(self.net, [features])
        self.seconds += time.process_time() - start
        return Update(client, self.stage.name, 1, IMAGES, None, {}, extras)


def draw(client: int, clusters: int) -> Tensor:
    """Features of a client: noisy samples of as many points as there are clusters."""
    centres = torch.randn(clusters, FEATURES, generator=torch.Generator().manual_seed(0))
    own = torch.Generator().manual_seed(1 + client)
    noise = torch.randn(IMAGES, FEATURES, generator=own)
    return centres[torch.randint(clusters, (IMAGES,), generator=own)] + noise


def measure(clients: int, clusters: int) -> list[dict[str, Any]]:
    """All stages of the default clustering, one after the other."""
    method, net = InformativeClustering(), Network(Branch(nn.Identity()))
    method.extend(net, FEATURES, clusters)
    rows = []
    for stage in method.stages():
        replies = Replies(net, stage, clients, clusters)
        before = replies.seconds
        reset_peak()
        idle, start = bytes_in_use(torch.device("cpu")), time.process_time()
        copy_into(net, stage.combine(replies, net.state_dict()).weights)
        again = replies.seconds - before  # replies computed while the server read them
        spent = before if replies.held is not None else again
        rows.append(
            {
                "stage": stage.name,
                "clients": clients,
                "clusters": clusters,
                "clients, s": round(spent, 2),
                "server, s": round(time.process_time() - start - again, 2),
                "replies, MB": round(replies.bytes / 2**20, 1),
                "server's peak, MB": round((peak_bytes() - idle) / 2**20),
            }
        )
    return rows


if __name__ == "__main__":
    main()
