"""Bytes and CPU seconds of secure aggregation for a vector of the size of ResNet-18.

One client and the server do all their work; the vectors of the other clients are copies of the first.
Usage: python benchmarks/secure_aggregation.py [--clients 5 20 50] [--length 11500000] [--dropped 0.1]
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fedmcc.federation.secure_aggregation.collector import Collector
from fedmcc.federation.secure_aggregation.participant import Participant
from fedmcc.federation.secure_aggregation.quantise import encode

LENGTH = 11_500_000  # about as many as the first stage of fedmcc shares with ResNet-18; 46 MB
CONTEXT = b"benchmark"


@contextmanager
def measured(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the CPU seconds of the block."""
    started = time.process_time()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.process_time() - started


def measure(clients: int, length: int, dropped: float) -> dict[str, object]:
    """The cost of one round for client 0 and for the server."""
    seconds: dict[str, float] = {}
    sent = 64  # the two public keys of client 0
    change = np.random.default_rng(0).normal(0, 0.01, length)
    people = {index: Participant(index, CONTEXT) for index in range(clients)}
    keys = {index: person.public_keys for index, person in people.items()}
    collector = Collector(CONTEXT, keys, length)
    for index, person in people.items():
        with measured(seconds, "client" if index == 0 else "others"):
            shares = person.share(keys, collector.threshold)
        sent += shares.bytes if index == 0 else 0
        collector.add_shares(index, shares)
    with measured(seconds, "client"):
        masked = people[0].mask(encode(change / clients), collector.sealed_for(0))
    staying = range(clients - int(dropped * clients))
    for index in staying:
        if index:
            people[index].mask(np.empty(0, np.uint32), collector.sealed_for(index))
        with measured(seconds, "server"):
            collector.add_masked(index, masked)
    received = collector.close()
    for index in received:
        people[index].confirm(received)
    for index in received:
        with measured(seconds, "client" if index == 0 else "others"):
            revealed = people[index].reveal(received)
        sent += revealed.bytes if index == 0 else 0
        with measured(seconds, "server"):
            collector.add_revealed(index, revealed)
    with measured(seconds, "server"):
        collector.total()
    down = 64 * clients + sum(map(len, collector.sealed_for(0).values()))
    return {
        "clients": clients,
        "dropped": clients - len(received),
        "vector_bytes": 4 * length,
        "more_bytes_up": sent,
        "more_bytes_down": down,
        "client_cpu_seconds": round(seconds["client"], 3),
        "server_cpu_seconds": round(seconds["server"], 3),
    }


def main() -> None:
    """Print a line of JSON for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20, 50])
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--dropped", type=float, default=0.1, help="fraction of clients that drop out")
    options = parser.parse_args()
    for clients in options.clients:
        print(json.dumps(measure(clients, options.length, options.dropped)), flush=True)


if __name__ == "__main__":
    main()
