"""The app that Flower runs at a site: it answers the messages that the server signed for this site.

Unexpected errors stay in the site's log, without file names; the server gets a general sentence.
"""

import logging
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmcc.deployment import PROTOCOL
from fedmcc.deployment.flower import masking_records, packets, records
from fedmcc.deployment.flower.logs import set_up_logging
from fedmcc.deployment.flower.signatures import Order, Received, check_time
from fedmcc.deployment.messages import Attempt, SiteTask
from fedmcc.deployment.setup.layout import SiteFolder
from fedmcc.deployment.site.identity import SiteIdentity
from fedmcc.deployment.site.memory import LostStateError, RefusalError
from fedmcc.deployment.site.peers import PeerBook
from fedmcc.deployment.site.policy import SitePolicy, parse_policy, required
from fedmcc.deployment.site.worker import Shard, SiteWorker
from fedmcc.errors import InputError

log = logging.getLogger(__name__)

IGNORED = "The site ignored a message that the server did not sign for it."
Work = Callable[[SiteWorker, Order | None], RecordDict]  # without an order in a simulation

client_app = ClientApp()  # a plain assignment: Flower parses this file before it imports it


@client_app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Answer the greeting of a server."""

    def work(site: SiteWorker, order: Order | None) -> RecordDict:
        greeting = records.unpack_greeting(message.content)
        answer = site.hello(greeting)
        if site.ledger is not None and order is not None:
            site.ledger.agree(order.run, greeting.recipe)
        return records.pack_hello(answer)

    return _reply(message, context, work)


@client_app.query("refused")
def refused(message: Message, context: Context) -> Message:
    """Log why the server rejected this site."""

    def work(site: SiteWorker, order: Order | None) -> RecordDict:
        log.error("The server rejected this site: %s", records.unpack_text(message.content))
        return RecordDict()

    return _reply(message, context, work)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Do the task of a round."""

    def work(site: SiteWorker, order: Order | None) -> RecordDict:
        started = time.monotonic()
        site_task = records.unpack_task(message.content)
        if order is not None and (order.run, order.stage, order.round) != _place(site_task):
            raise RefusalError("The task differs from its order.")
        update = site.answer(site_task, _expires(message, order))
        return records.pack_reply(records.Reply(update, time.monotonic() - started))

    return _reply(message, context, work)


@client_app.query("keys")
def keys(message: Message, context: Context) -> Message:
    """Begin an attempt at a round with secure aggregation."""

    def work(site: SiteWorker, order: Order | None) -> RecordDict:
        attempt, client = _attempt(message, order)
        answer = site.masked_round(attempt.run).keys(attempt, int(client), _expires(message, order))
        return masking_records.pack_keys(*answer)

    return _reply(message, context, work)


@client_app.query("shares")
def shares(message: Message, context: Context) -> Message:
    """Share the secrets of an attempt among its sites."""

    def work(site: SiteWorker, order: Order | None) -> RecordDict:
        attempt, content = _attempt(message, order)
        peers = masking_records.read_peers(content)
        answer = site.masked_round(attempt.run).shares(attempt, peers, _expires(message, order))
        return masking_records.pack_shares(answer)

    return _reply(message, context, work)


@client_app.query("confirm")
def confirm(message: Message, context: Context) -> Message:
    """Sign the list of sites whose masked vectors the server has received."""

    def work(site: SiteWorker, order: Order | None) -> RecordDict:
        attempt, content = _attempt(message, order)
        received = [int(client) for client in content]
        answer = site.masked_round(attempt.run).confirm(attempt, received, _expires(message, order))
        return masking_records.pack_confirmation(answer)

    return _reply(message, context, work)


@client_app.query("reveal")
def reveal(message: Message, context: Context) -> Message:
    """Reveal the shares that unmask the sum of an attempt."""

    def work(site: SiteWorker, order: Order | None) -> RecordDict:
        attempt, content = _attempt(message, order)
        signatures = masking_records.read_sealed(content)
        answer = site.masked_round(attempt.run).reveal(attempt, signatures, _expires(message, order))
        return masking_records.pack_revealed(answer)

    return _reply(message, context, work)


def _attempt(message: Message, order: Order | None) -> tuple[Attempt, Any]:
    """The attempt in a message, which must be that of its order, and what the step needs besides."""
    attempt, content = masking_records.unpack_attempt(message.content)
    place = (attempt.run, attempt.stage, attempt.round)
    if order is not None and (order.run, order.stage, order.round) != place:
        raise RefusalError("The attempt differs from its order.")
    return attempt, content


def _expires(message: Message, order: Order | None) -> float:
    return message.metadata.created_at + message.metadata.ttl if order is None else order.expires / 1000


def _place(site_task: SiteTask) -> tuple[str, str, int]:
    return site_task.run, site_task.task.stage, site_task.task.round


def _reply(message: Message, context: Context, work: Work) -> Message:
    """The signed reply of a site to a message, or the reason why there is none.

    A message that the server did not sign gets no signature and no information.
    """
    set_up_logging()
    identity, packed = None, False
    try:
        identity = read_identity(context)
        packed = packets.is_packed(message.content)
        message.content = packets.unpack(message.content)
        received = identity.receive(message) if identity else None
    except Exception as error:  # whatever a forged message causes
        log.error("Ignored a message: %s", _public_reason(error))
        if identity is not None:
            _record_ignored(identity, error)
        return Message(records.pack_failure(records.Failure(IGNORED)), reply_to=message)
    content = _answer(context, received, work)
    if identity and received:
        identity.sign(content, received.order)
    return Message(packets.pack(content) if packed else content, reply_to=message)


def _record_ignored(identity: SiteIdentity, error: Exception) -> None:
    """Record that a message was ignored; a site whose folder is damaged cannot even do that."""
    reason = str(error) if isinstance(error, records.UnreadableError) else type(error).__name__
    try:
        identity.ignore(reason)
    except (OSError, InputError) as failed:
        log.error("The audit book cannot be written: %s", _public_reason(failed))


def _answer(context: Context, received: Received | None, work: Work) -> RecordDict:
    """The content of the reply to a genuine message, or a failure with its reason."""
    try:
        if received is not None:
            check_time(received, time.time())
        return work(read_site(context), received.order if received else None)
    except (RefusalError, ArithmeticError, records.UnreadableError) as error:
        log.error("%s", error)
        return records.pack_failure(records.Failure(str(error), isinstance(error, LostStateError)))
    except Exception as error:
        log.error("%s", _public_reason(error))
        return records.pack_failure(records.Failure("it failed (see its log)."))


def _public_reason(error: Exception) -> str:
    """An error for the log: messages of others than fedmcc may name image files, and are left out."""
    if isinstance(error, InputError | records.UnreadableError):
        return str(error)
    trace = "".join(traceback.format_tb(error.__traceback__))
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}{f': {reason}' if reason else ''}\n{trace}".rstrip()


def read_identity(context: Context) -> SiteIdentity | None:
    """The keys of a Flower node; None for the nodes of a simulation, which have none."""
    if _is_simulated(context):
        return None
    if not (folder := context.node_config.get("folder")):
        raise InputError("The site's node-config has no folder: start the site with `fedmcc site start`.")
    if (protocol := context.run_config.get("protocol", PROTOCOL)) != PROTOCOL:
        raise InputError(
            f"The server has version {protocol} of the messages and this site version {PROTOCOL}: "
            "install the same fedmcc everywhere."
        )
    return SiteIdentity(SiteFolder(Path(str(folder))), context.node_id)


def _is_simulated(context: Context) -> bool:
    return "partition-id" in context.node_config and "client" not in context.node_config


def read_site(context: Context) -> SiteWorker:
    """The site of a Flower node; nodes of a simulation are parts of the recipe's data set."""
    config = context.node_config
    if _is_simulated(context):
        part, parts = int(config["partition-id"]), int(config["num-partitions"])
        name = f"client-{part:0{len(str(parts - 1))}}"
        folder = Path(str(context.run_config["sites"])) / name
        return SiteWorker(name, folder, shard=Shard(part, parts), simulated=True)
    for key in ("client", "state-dir"):
        if not config.get(key):
            raise InputError(f"The site's node-config has no {key}: add it.")
    data, encoder = (Path(str(config[key])) if config.get(key) else None for key in ("data", "encoder"))
    identity = read_identity(context)
    policy = parse_policy(identity.folder.read_policy()) if identity else SitePolicy()
    return SiteWorker(
        name=str(config["client"]),
        folder=Path(str(config["state-dir"])),
        data=data,
        shard=_shard(config.get("shard")),
        ledger=identity.ledger if identity else None,
        policy=required(policy, str(config.get("require", ""))),
        encoder=encoder,
        peers=PeerBook(identity.folder, policy.sites) if identity else None,
    )


def _shard(text: Any) -> Shard | None:
    if not text:
        return None
    part, _, parts = str(text).partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise InputError(f"shard is '{text}': write 0/3 for the first of three parts.")
    return Shard(int(part), int(parts))
