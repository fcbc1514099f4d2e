"""Weights of an encoder from a safetensors file, such as a converted torchvision checkpoint."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedmcc.errors import InputError

Weights = dict[str, Tensor]


def load_encoder(encoder: nn.Module, path: Path) -> None:
    """Put the file's weights into the encoder and mark it `pretrained`, or leave it as it was and raise.

    The classifier (`fc.*`) is ignored. Kernels for colour images fit a greyscale encoder summed over
    their channels, which is the same as feeding the grey image three times.
    """
    own = encoder.state_dict()
    stored = {key: value for key, value in _read(path).items() if not key.startswith("fc.")}
    stored = _grey(stored, own)
    _check(stored, own, path)
    encoder.load_state_dict({key: stored.get(key, value) for key, value in own.items()})
    encoder.pretrained = True  # type: ignore[assignment]


def _read(path: Path) -> Weights:
    if not path.is_file():
        raise InputError(f"There is no weights file '{path}': check encoder.weights.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"'{path}' is truncated or no safetensors file: fetch it again, or save the state dict with "
            f"safetensors.torch.save_file."
        ) from error
    except OSError as error:
        raise InputError(f"Cannot read the weights file '{path}': {error.strerror or error}.") from error


def _grey(stored: Weights, own: Weights) -> Weights:
    """The first kernels summed over red, green and blue if the encoder sees one channel."""
    if "conv1.weight" not in stored or "conv1.weight" not in own:
        return stored
    grey = stored["conv1.weight"].sum(dim=1, keepdim=True)
    return stored | {"conv1.weight": grey} if grey.shape == own["conv1.weight"].shape else stored


def _check(stored: Weights, own: Weights, path: Path) -> None:
    """Raise at the first name, in the encoder's order, that the two do not share with the same shape."""
    for key in [*own, *(key for key in stored if key not in own)]:
        # Old checkpoints lack these counters, and nothing depends on them.
        counter = key.endswith("num_batches_tracked")
        if not counter and _shape(stored, key) != _shape(own, key):
            raise InputError(
                f"'{path}' holds another architecture: {key} is {_shape(stored, key)} in the file and "
                f"{_shape(own, key)} in the encoder. Choose the encoder, stem and norm it was trained with."
            )


def _shape(weights: Weights, key: str) -> str:
    return "x".join(map(str, weights[key].shape)) if key in weights else "absent"
