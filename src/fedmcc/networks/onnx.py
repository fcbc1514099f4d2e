"""A pretrained encoder in an ONNX file, run by onnxruntime with one thread per image."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.frozen import FrozenEncoder, hash_file, missing_package, require_identity, require_path
from fedmcc.networks.normalise import Normalise, Triple, read_triple

WHAT = "an ONNX file"
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
METADATA = ("mean", "std", "size")


class OnnxEncoder(FrozenEncoder):
    """The first output of an ONNX graph; maps are averaged over their positions."""

    def __init__(self, session: Any, features: int, normalise: Normalise, identity: str) -> None:
        super().__init__(features, normalise, identity)
        self.session = session
        self.input = session.get_inputs()[0].name
        self.output = session.get_outputs()[0].name

    def encode_all(self, batches: list[Tensor]) -> list[Tensor]:
        """Features of several batches, one thread for each."""
        return in_threads(self.encode, batches)

    def facts(self) -> list[Any]:
        """What the features of an image depend on besides the image: also the version of onnxruntime."""
        return [*super().facts(), version("onnxruntime")]

    def encode(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        return pool_positions(self.run(images))

    def run(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n ..."]:
        """The output of the graph for normalised images, before it is averaged over positions."""
        return run_session(self.session, images)


def in_threads(encode: Callable[[Tensor], Tensor], batches: list[Tensor]) -> list[Tensor]:
    """Features of several batches, one thread for each: threads change the time, not the result."""
    threads = min(torch.get_num_threads(), len(batches))
    if threads < 2:
        return [encode(batch) for batch in batches]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(encode, batches))


def run_session(session: Any, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n ..."]:
    """The first output of a graph, image by image."""
    pixels, name = np.ascontiguousarray(images.cpu().numpy()), session.get_inputs()[0].name
    rows = [session.run(None, {name: image[None]})[0] for image in pixels]
    return torch.from_numpy(np.concatenate(rows)).to(images.device)


def pool_positions(outputs: Tensor) -> Tensor:
    """Rows of features: the mean over the positions of a map, or over the tokens of a sequence."""
    if outputs.dim() == 4:
        return outputs.float().mean(dim=(2, 3))
    return outputs.float().mean(dim=1) if outputs.dim() == 3 else outputs.float()


@dataclass(frozen=True)
class OnnxOptions:
    """A pretrained ONNX file, frozen: its weights are never trained, sent or stored."""

    path: Path | None = None  # the ONNX file
    sha256: str | None = None  # of the file; None: any, and the run records it
    mean: Triple | None = None  # of each channel of images in [0, 1]; None: the metadata of the file
    std: Triple | None = None
    size: int | None = None  # side of its images in pixels; None: the file's metadata or its input
    frozen: ClassVar[bool] = True

    def resolve(self) -> "OnnxOptions":
        """Record the SHA-256 of the file."""
        return replace(self, sha256=self._identity())

    def image_size(self) -> int | None:
        """Side of the images that the encoder was trained on; None if neither file nor recipe says it."""
        session = self._session()
        side = session.get_inputs()[0].shape[-1]
        stored = self.size or _metadata(session).get("size") or side
        return stored if isinstance(stored, int) else None

    def build(self, channels: int, size: int) -> nn.Module:
        """Build the encoder for square images of this size."""
        identity, session = self._identity(), self._session()
        _check_input(session, self._file(), size)
        stored = _metadata(session)
        mean, std = self.mean or stored.get("mean"), self.std or stored.get("std")
        if mean is None or std is None:
            raise InputError(
                f"{self.path} has no mean and std in its metadata: set encoder.mean and encoder.std."
            )
        normalise = Normalise(read_triple(mean, "mean"), read_triple(std, "std"))
        encoder = OnnxEncoder(session, 0, normalise, identity)
        encoder.features = _width(encoder, self._file(), size)
        encoder.shape = (channels, size, size)
        return encoder

    def _file(self) -> Path:
        path = require_path(self.path, WHAT)
        if path.suffix in PICKLES:
            raise InputError(f"{path} is a pickle, which could run any code: export the network to ONNX.")
        if not path.is_file():
            raise InputError(f"{path} is a folder: set encoder.path to {WHAT}.")
        return path

    def _identity(self) -> str:
        identity = hash_file(self._file())
        require_identity(self._file(), identity, self.sha256)
        return identity

    def _session(self) -> Any:
        return _open_session(self._file(), self._identity())


@lru_cache(maxsize=2)
def _open_session(path: Path, identity: str) -> Any:
    """A session of onnxruntime for a file with this SHA-256."""
    try:  # from bytes: other files, which the SHA-256 does not cover, are not read
        return start_session(path.read_bytes())
    except InputError:
        raise
    except Exception:  # onnxruntime has an exception for each of its status codes
        raise InputError(
            f"{path} is truncated or not an ONNX file that onnxruntime can run: fetch it again."
        ) from None


def start_session(content: bytes) -> Any:
    """A session of onnxruntime with one thread for the content of an ONNX file."""
    try:
        import onnxruntime
    except ImportError:
        raise missing_package("onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _metadata(session: Any) -> dict[str, Any]:
    """Mean, std and size in the metadata of the file, written as JSON; what cannot be read is left out."""
    stored = session.get_modelmeta().custom_metadata_map
    values = {}
    for name in METADATA:
        try:
            values[name] = json.loads(stored[name])
        except (KeyError, ValueError):
            continue
    return values


def _check_input(session: Any, path: Path, size: int) -> None:
    if "fedmcc" in session.get_modelmeta().custom_metadata_map:
        raise InputError(
            f"{path} was written by `fedmcc export` and is not an encoder, but maps pixels to clusters: set "
            "encoder.path to the ONNX file of a pretrained encoder."
        )
    shape = session.get_inputs()[0].shape
    if len(shape) != 4 or (isinstance(shape[1], int) and shape[1] != 3):
        raise InputError(f"{path} does not take colour images as n x 3 x height x width: use another file.")
    fixed = {side for side in shape[2:] if isinstance(side, int)}
    if fixed - {size}:
        raise InputError(
            f"{path} takes images of {max(fixed)} pixels: set views.size to that, or leave it out."
        )


def _width(encoder: OnnxEncoder, path: Path, size: int) -> int:
    """Number of features, from a black image."""
    try:
        outputs = encoder.encode(torch.zeros((1, 3, size, size)))
    except Exception:  # onnxruntime has an exception for each of its status codes
        raise InputError(f"{path} cannot encode images of {size} pixels: set views.size.") from None
    if outputs.dim() != 2:
        raise InputError(f"{path} has no output of features for each image: use another file.")
    return outputs.shape[1]
