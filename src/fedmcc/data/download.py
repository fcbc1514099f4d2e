"""Official files from the network, through pooch: checked, and kept only when they are right."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fedmcc.data.cache import cache_folder
from fedmcc.data.progress_bar import progress_bar
from fedmcc.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

CHUNK_BYTES = 1 << 16  # bytes per write
TIMEOUTS = (10, 60)  # seconds until a server must answer, and between two pieces


@dataclass(frozen=True)
class Remote:
    """A file that the network holds: its name, its checksum and the places that serve it."""

    name: str
    checksum: str  # "md5:..." or "sha256:..."
    mirrors: tuple[str, ...]  # addresses that end in a slash, the name follows


def search_folders(root: Path | None, dataset: str) -> tuple[Path, ...]:
    """Folders where a data set's files may lie; a download goes to the first."""
    if root is None:
        return (cache_folder() / dataset,)
    root = root.expanduser()
    return root, root / dataset


def fetch(remote: Remote, folder: Path) -> Path:
    """The file in `folder`, downloaded if it is not there."""
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
        f"Get it by hand from {remote.mirrors[0]}{remote.name} and put it in {folder}."
    )


def _download(remote: Remote, mirror: str, folder: Path) -> str | None:
    """What went wrong with this mirror, or None when the file is in place."""
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
                "Set FEDMCC_DATA (or data.root) to a folder that you can write and that has room."
            ) from error
        except ValueError:  # pooch's word for a wrong checksum
            return f"what {urlsplit(mirror).hostname} sent has the wrong checksum, so it was not kept"
    return None


def _reason(error: Exception, host: str) -> str:
    from requests.exceptions import ChunkedEncodingError, HTTPError

    if isinstance(error, HTTPError) and error.response is not None:
        return f"{host} answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, ChunkedEncodingError):
        return f"{host} broke off midway"
    return f"{host} cannot be reached"


class DownloadBar:
    """The calls pooch makes of a progress bar, drawn by rich."""

    def __init__(self, name: str, progress: "Progress") -> None:
        self.total = 0  # pooch sets it when the server says it
        self.progress = progress
        self.task = progress.add_task(name, total=None)

    def update(self, amount: int) -> None:
        """So many more bytes have arrived."""
        self.progress.update(self.task, advance=amount, total=self.total or None)

    def reset(self) -> None:
        """Count from nothing again."""
        self.progress.reset(self.task)

    def close(self) -> None:
        """Nothing to do: the bar ends with the download."""
