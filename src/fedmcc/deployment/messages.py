"""What a server and its sites send each other around tasks and updates."""

from typing import NamedTuple

from fedmcc.messages import StageRound, Task


class SiteTask(NamedTuple):
    """A task for a site elsewhere, which knows nothing of the run but this."""

    run: str  # what tells this run from every other
    config: str  # complete but for what depends on the site's machine and images
    fingerprint: str  # of the network and stages that the server has
    base: StageRound | None  # the last round of this site that counted; None: there was none
    task: Task


class Greeting(NamedTuple):
    """What a server tells a site before anything else."""

    recipe: str  # TOML
    finished: tuple[str, ...] = ()  # runs of which sites need remember nothing any more


class Hello(NamedTuple):
    """Who a site is, what it holds, and the network and stages that it would train."""

    name: str
    samples: int
    channels: int
    size: int  # pixels of the shorter side
    version: str
    fingerprint: str
