"""The two objects that Flower looks for: `server_app` runs the rounds, `client_app` answers at a site.

What a site says of its troubles goes to the server only if it can name no file: the rest is in its own log.
"""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedmcc.deployment.flower import records
from fedmcc.deployment.server.bundle import DEFAULTS
from fedmcc.deployment.server.coordinator import Service, serve
from fedmcc.deployment.server.membership import JoinPolicy
from fedmcc.deployment.site.worker import ForgottenError, RefusalError, Shard, SiteWorker
from fedmcc.errors import InputError
from fedmcc.runs.experiment import Scored

log = logging.getLogger(__name__)

server_app = ServerApp()  # one to a line: Flower reads this file before it runs it
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, from wherever the run directory stands."""
    _listen()
    try:
        for event in serve(grid, service_of(context.run_config)):
            log.info(_line(event) if isinstance(event, Scored) else "The run is complete.")
    except (InputError, ArithmeticError) as error:
        log.error("%s", error)
        raise


@client_app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say who the site is."""
    return _reply(
        message,
        context,
        lambda site: records.pack_hello(site.hello(records.unpack_greeting(message.content))),
    )


@client_app.query("refused")
def refused(message: Message, context: Context) -> Message:
    """The server's reason for turning the site away."""
    _listen()
    log.error("The server turned this site away: %s", records.unpack_text(message.content))
    return Message(RecordDict(), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Do a task."""

    def work(site: SiteWorker) -> RecordDict:
        started = time.monotonic()
        until = message.metadata.created_at + message.metadata.ttl  # then the server gives it up
        update = site.answer(records.unpack_task(message.content), until)
        return records.pack_reply(records.Reply(update, time.monotonic() - started))

    return _reply(message, context, work)


def service_of(config: Mapping[str, Any]) -> Service:
    """What a server is started with, from Flower's flat configuration."""
    config = DEFAULTS | dict(config)
    names = [name.strip() for name in str(config["sites"]).split(",") if name.strip()]
    if len(set(names)) < len(names):
        raise InputError(f"sites is '{config['sites']}': name each site once.")
    if not config["run"]:
        raise InputError("run is empty: give the path of the run directory.")
    terms = JoinPolicy(
        names=tuple(names),
        nodes=tuple(_node(pair) for pair in str(config["nodes"]).split(",") if pair),
        least=int(config["min-sites"]),
        wait=float(config["wait"]),
        timeout=float(config["round-timeout"]),
    )
    return Service(str(config["recipe"]), Path(str(config["run"])), terms)


def site_of(context: Context) -> SiteWorker:
    """Who this node is; those of a simulation are parts of the recipe's data set."""
    config = context.node_config
    if "partition-id" in config and "client" not in config:
        part, parts = int(config["partition-id"]), int(config["num-partitions"])
        name = f"client-{part:0{len(str(parts - 1))}}"
        return SiteWorker(
            name, Path(str(context.run_config["run"])) / "sites" / name, shard=Shard(part, parts)
        )
    for key in ("client", "state-dir"):
        if not config.get(key):
            raise InputError(f"The site's node-config has no {key}: give it one.")
    data = Path(str(config["data"])) if config.get("data") else None
    return SiteWorker(
        str(config["client"]), Path(str(config["state-dir"])), data, _shard(config.get("shard"))
    )


def _shard(text: Any) -> Shard | None:
    if not text:
        return None
    part, _, parts = str(text).partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise InputError(f"shard is '{text}': write 0/3 for the first of three parts.")
    return Shard(int(part), int(parts))


def _node(pair: str) -> tuple[str, int]:
    name, _, node = pair.strip().partition(":")
    if not node.isdecimal():
        raise InputError(f"nodes has '{pair}': write the name of a site and its node, such as north:12.")
    return name, int(node)


def _reply(message: Message, context: Context, work: Callable[[SiteWorker], RecordDict]) -> Message:
    """What a site makes of a message, or why it cannot."""
    _listen()
    try:
        content = work(site_of(context))
    except (RefusalError, ArithmeticError, records.UnreadableError) as error:
        log.error("%s", error)
        content = records.pack_failure(records.Failure(str(error), isinstance(error, ForgottenError)))
    except Exception as error:
        log.error("%s", error, exc_info=not isinstance(error, InputError))
        content = records.pack_failure(records.Failure("it failed; its own log says why."))
    return Message(content, reply_to=message)


def _line(event: Scored) -> str:
    """A round for the log: sites and numbers, nothing else."""
    row = event.row
    names = ", ".join(row["sites"][str(client)] for client in row["participants"])
    loss = "" if row["loss"] is None else f", loss {row['loss']:.3f}"
    return f"{row['stage']} {row['round']}/{event.rounds}: {names}{loss}, {row['seconds']:.1f} s"


def _listen() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("fedmcc").setLevel(logging.INFO)
