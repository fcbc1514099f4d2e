"""The app that Flower runs at a site: it answers the messages of the server.

An error message that may contain file names stays in the site's log; the server gets a general one.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmcc.deployment.flower import records
from fedmcc.deployment.flower.logs import set_up_logging
from fedmcc.deployment.site.worker import LostStateError, RefusalError, Shard, SiteWorker
from fedmcc.errors import InputError

log = logging.getLogger(__name__)

client_app = ClientApp()  # a plain assignment: Flower parses this file before it imports it


@client_app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Answer the greeting of a server."""
    return _reply(
        message,
        context,
        lambda site: records.pack_hello(site.hello(records.unpack_greeting(message.content))),
    )


@client_app.query("refused")
def refused(message: Message, context: Context) -> Message:
    """Log why the server rejected this site."""
    set_up_logging()
    log.error("The server rejected this site: %s", records.unpack_text(message.content))
    return Message(RecordDict(), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Do the task of a round."""

    def work(site: SiteWorker) -> RecordDict:
        started = time.monotonic()
        expires = message.metadata.created_at + message.metadata.ttl
        update = site.answer(records.unpack_task(message.content), expires)
        return records.pack_reply(records.Reply(update, time.monotonic() - started))

    return _reply(message, context, work)


def _reply(message: Message, context: Context, work: Callable[[SiteWorker], RecordDict]) -> Message:
    """The reply of a site to a message, or the reason why there is none."""
    set_up_logging()
    try:
        content = work(read_site(context))
    except (RefusalError, ArithmeticError, records.UnreadableError) as error:
        log.error("%s", error)
        content = records.pack_failure(records.Failure(str(error), isinstance(error, LostStateError)))
    except Exception as error:
        log.error("%s", error, exc_info=not isinstance(error, InputError))
        content = records.pack_failure(records.Failure("it failed (see its log)."))
    return Message(content, reply_to=message)


def read_site(context: Context) -> SiteWorker:
    """The site of a Flower node; nodes of a simulation are parts of the recipe's data set."""
    config = context.node_config
    if "partition-id" in config and "client" not in config:
        part, parts = int(config["partition-id"]), int(config["num-partitions"])
        name = f"client-{part:0{len(str(parts - 1))}}"
        folder = Path(str(context.run_config["run"])) / "sites" / name
        return SiteWorker(name, folder, shard=Shard(part, parts), simulated=True)
    for key in ("client", "state-dir"):
        if not config.get(key):
            raise InputError(f"The site's node-config has no {key}: add it.")
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
