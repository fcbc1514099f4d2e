"""Messages between server and sites, besides the tasks and updates of `fedmcc.messages`."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from fedmcc.federation.secure_aggregation.participant import PublicKeys
from fedmcc.messages import StageRound, Task


class Attempt(NamedTuple):
    """One attempt at a round with secure aggregation, the same for all its sites."""

    run: str
    stage: str
    round: int
    token: str  # random: no two attempts are equal
    sent: str  # SHA-256 of the weights and extras in the tasks of all sites
    images: Mapping[int, int]  # the number of images by which each client counts

    @property
    def context(self) -> bytes:
        """A hash of all fields, which enters every key: masks cancel only among sites with the same ones."""
        place = [self.run, self.stage, self.round, self.token, self.sent, sorted(self.images.items())]
        return sha256(json.dumps(place).encode()).hexdigest().encode()


class Peer(NamedTuple):
    """A site in an attempt: its public keys, signed with the key by which it is registered."""

    name: str
    keys: PublicKeys
    signature: bytes
    registered: bytes  # the public key of the site, in OpenSSH's format


class SiteTask(NamedTuple):
    """A task for a site, with everything that the site needs to know about the run."""

    run: str  # unique id of the run
    config: str  # TOML, complete except for options that depend on the site's machine and images
    fingerprint: str  # of the server's network and stages
    base: StageRound | None  # the last round of this site that was averaged; None: no round yet
    task: Task
    masking: str | None = None  # with secure aggregation, the attempt and the shares of the other sites


class Greeting(NamedTuple):
    """The first message of a server to a site."""

    recipe: str  # TOML
    finished: tuple[str, ...] = ()  # ids of finished runs, whose states sites can delete


class Hello(NamedTuple):
    """The answer of a site to a greeting: its name, its images, and the network that it would train."""

    name: str
    samples: int
    channels: int
    size: int  # pixels of the shorter side
    version: str
    fingerprint: str
