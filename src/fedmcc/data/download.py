"""Download of official files with pooch; a file with a wrong checksum is discarded."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fedmcc.data.cache import cache_folder
from fedmcc.data.progress_bar import progress_bar
from fedmcc.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

CHUNK_BYTES = 1 << 16  # per write
TIMEOUTS = (10, 60)  # seconds to connect, and between two received pieces


@dataclass(frozen=True)
class Remote:
    """A file to download: its name, its checksum and its mirrors."""

    name: str
    checksum: str  # "md5:..." or "sha256:..."
    mirrors: tuple[str, ...]  # base URLs that end in a slash


def search_folders(root: Path | None, dataset: str) -> tuple[Path, ...]:
    """Folders to search for the files of a data set; downloads go to the first."""
    if root is None:
        return (cache_folder() / dataset,)
    root = root.expanduser()
    return root, root / dataset


def fetch(remote: Remote, folder: Path) -> Path:
    """Return the path of the file in `folder`; download the file if it is missing."""
    target = folder / remote.name
    if target.is_file():
        return target
    problems = []
    for mirror in remote.mirrors:
        problem = _download(remote, mirror, folder)
        if problem is None:
            return target
        problems.append(problem)
    raise InputError(
        f"Could not download {remote.name}: {'; '.join(problems)}. "
        f"Download it by hand from {remote.mirrors[0]}{remote.name} and put it in {folder}."
    )


def _download(remote: Remote, mirror: str, folder: Path) -> str | None:
    """Download from one mirror; return the reason of a failure, or None on success."""
    import pooch
    from requests.exceptions import RequestException

    pooch.get_logger().setLevel("ERROR")
    with progress_bar(bytes_counted=True) as progress:
        bar = DownloadBar(remote.name, progress)
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=TIMEOUTS)
        try:
            pooch.retrieve(mirror + remote.name, remote.checksum, remote.name, folder, downloader=downloader)
        except RequestException as error:
            return _reason(error, urlsplit(mirror).hostname or mirror)
        except OSError as error:
            raise InputError(
                f"Could not write {folder / remote.name}: {error.strerror or error}. "
                "Set FEDMCC_DATA (or data.root) to a writable folder with enough free space."
            ) from error
        except ValueError:  # pooch raises it for a wrong checksum
            return f"the file from {urlsplit(mirror).hostname} has a wrong checksum and was discarded"
    return None


def _reason(error: Exception, host: str) -> str:
    from requests.exceptions import ChunkedEncodingError, HTTPError

    if isinstance(error, HTTPError) and error.response is not None:
        return f"{host} answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, ChunkedEncodingError):
        return f"{host} closed the connection before the end"
    return f"{host} cannot be reached"


class DownloadBar:
    """Progress bar with the interface that pooch expects, drawn by rich."""

    def __init__(self, name: str, progress: "Progress") -> None:
        self.total = 0  # pooch sets it if the server sends the size
        self.progress = progress
        self.task = progress.add_task(name, total=None)

    def update(self, amount: int) -> None:
        """Add to the number of received bytes."""
        self.progress.update(self.task, advance=amount, total=self.total or None)

    def reset(self) -> None:
        """Start again at zero."""
        self.progress.reset(self.task)

    def close(self) -> None:
        """Do nothing: the bar is removed when the download ends."""
