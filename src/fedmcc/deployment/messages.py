"""Messages between server and sites, besides the tasks and updates of `fedmcc.messages`."""

from typing import NamedTuple

from fedmcc.messages import StageRound, Task


class SiteTask(NamedTuple):
    """A task for a site, with everything that the site needs to know about the run."""

    run: str  # unique id of the run
    config: str  # TOML, complete except for options that depend on the site's machine and images
    fingerprint: str  # of the server's network and stages
    base: StageRound | None  # the last round of this site that was averaged; None: no round yet
    task: Task


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
