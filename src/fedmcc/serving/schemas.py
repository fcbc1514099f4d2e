"""What the API sends and receives, as OpenAPI documents it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Prediction:
    """The cluster of an image that was sent."""

    cluster: int
    title: str  # number and name of the cluster
    colour: str
    confidence: float | None  # largest soft assignment
    second: int | None  # cluster of the second largest soft assignment
    distance: float | None  # 1 - cosine to the centre of the cluster: 0 is typical
    outlier: bool | None  # whether it is unlike the run's images; None: not known
    thumbnail: str  # the image as the network sees it, a data URL


@dataclass(frozen=True)
class MemberImage:
    """An image of the run."""

    image: str  # its name
    confidence: float | None
    second: int | None
    outlier: bool | None
    thumbnail: str  # a data URL


@dataclass(frozen=True)
class ClusterSummary:
    """A cluster with its most typical images."""

    cluster: int
    name: str | None
    title: str
    colour: str
    size: int  # images of the run in it
    share: float  # of all images of the run
    typical: list[MemberImage] = field(default_factory=list)


@dataclass(frozen=True)
class MemberPage:
    """Some images of a cluster, in the order that was asked for."""

    total: int
    members: list[MemberImage]


@dataclass(frozen=True)
class RunSummary:
    """The run that is served, and what the service accepts."""

    run: str
    fedmcc: str
    images: int
    clusters: int
    height: int  # of the images as the network sees them
    width: int
    channels: int
    max_bytes: int
    max_pixels: int
    max_files: int
    shows_images: bool  # whether the images of the run can be read here
    updating: bool  # whether tables and report are being written again after a change
    notice: str | None = None


@dataclass(frozen=True)
class Name:
    """A new name of a cluster; an empty one removes it."""

    name: str


@dataclass(frozen=True)
class Merge:
    """The clusters to merge into another one."""

    others: list[int]


@dataclass(frozen=True)
class Failure:
    """Why a request was refused, in one sentence."""

    detail: str
