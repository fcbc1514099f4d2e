"""Downloads a pretrained encoder from the Hugging Face hub, at a fixed commit and with a checksum."""

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from fedmcc.errors import InputError
from fedmcc.networks.frozen import missing_package
from fedmcc.networks.huggingface import CONFIG, PREPROCESSOR, HuggingFaceOptions
from fedmcc.storage.atomic_files import make_folder

FILES = (CONFIG, PREPROCESSOR, "model.safetensors")


def fetch(name: str, revision: str, target: Path, sha256: str | None = None) -> str:
    """Download the files of a model into a new folder and return their SHA-256.

    The folder is complete or absent. No credentials are sent. HF_ENDPOINT names another server.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"'{name}' is not a name on the hub: write it as OWNER/MODEL.")
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise InputError(
            f"The revision is '{revision}': give the full commit of the model, 40 hexadecimal digits, "
            "because a branch can change."
        )
    if target.exists():
        raise InputError(f"{target} exists: give another folder as --out.")
    make_folder(target.parent, "the encoder")
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        folder = Path(scratch) / target.name
        for file in FILES:
            _download(name, revision, file, folder)
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # records of the download
        identity = HuggingFaceOptions(folder).resolve().sha256
        if sha256 not in (None, identity):
            raise InputError(
                f"The files of {name} have the SHA-256 {identity}, not {sha256}: none were kept."
            )
        folder.rename(target)
    return str(identity)


def _download(name: str, revision: str, file: str, folder: Path) -> None:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise missing_package("huggingface_hub") from None
    disable_progress_bars()
    try:
        hf_hub_download(name, file, revision=revision, local_dir=folder, token=False)
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
        raise InputError(
            f"The hub has no {file} of {name} at {revision[:12]}: check the name and the commit."
        ) from None
    except Exception as error:  # of the network or of the disk
        raise InputError(
            f"Cannot download {file} of {name} ({type(error).__name__}): check the connection, or fetch "
            f"{', '.join(FILES)} by hand, and set encoder.path to their folder."
        ) from None
