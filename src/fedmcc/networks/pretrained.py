"""Pretrained encoder weights from a safetensors file, such as a converted torchvision checkpoint."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedmcc.errors import InputError

Weights = dict[str, Tensor]
OF_A_RUN = "online.encoder."  # start of the encoder's names in the final network of a run


def load_encoder(encoder: nn.Module, path: Path) -> None:
    """Load the weights in a file into the encoder and mark it as `pretrained`; an error changes nothing.

    The file may be the final network of a run, `RUN/checkpoints/final.safetensors`, of which the encoder is
    loaded. The classifier (`fc.*`) is ignored. For a greyscale encoder, the kernels of the first layer are
    summed over the colour channels, which is equivalent to repeating the grey image in three channels.
    """
    current = encoder.state_dict()
    stored = {key: value for key, value in _encoder_of(_read(path)).items() if not key.startswith("fc.")}
    stored = _sum_colours(stored, current)
    _check(stored, current, path)
    encoder.load_state_dict({key: stored.get(key, value) for key, value in current.items()})
    encoder.pretrained = True  # type: ignore[assignment]


def _read(path: Path) -> Weights:
    if not path.is_file():
        raise InputError(f"There is no weights file '{path}': set encoder.weights to an existing file.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"'{path}' is truncated or not a safetensors file: download it again, or save the "
            "state dict with safetensors.torch.save_file."
        ) from error
    except OSError as error:
        raise InputError(
            f"Cannot read the weights file '{path}': {error.strerror or error}. "
            "Set encoder.weights to a readable file."
        ) from error


def _encoder_of(weights: Weights) -> Weights:
    """The encoder's weights if these are the network of a run, else all of them."""
    names = [key for key in weights if key.startswith(OF_A_RUN)]
    return {key.removeprefix(OF_A_RUN): weights[key] for key in names} if names else weights


def _sum_colours(stored: Weights, current: Weights) -> Weights:
    """Sum the kernels of the first layer over red, green and blue if the encoder has one input channel."""
    if "conv1.weight" not in stored or "conv1.weight" not in current:
        return stored
    grey = stored["conv1.weight"].sum(dim=1, keepdim=True)
    return stored | {"conv1.weight": grey} if grey.shape == current["conv1.weight"].shape else stored


def _check(stored: Weights, current: Weights, path: Path) -> None:
    """Raise InputError for the first tensor that the file and the encoder do not share in the same shape."""
    for key in [*current, *(key for key in stored if key not in current)]:
        # Old checkpoints lack these counters, which affect nothing.
        counter = key.endswith("num_batches_tracked")
        if not counter and _shape(stored, key) != _shape(current, key):
            raise InputError(
                f"'{path}' has another architecture: {key} is {_shape(stored, key)} in the file and "
                f"{_shape(current, key)} in the encoder. Set encoder.name, stem and norm as in its training."
            )


def _shape(weights: Weights, key: str) -> str:
    return "x".join(map(str, weights[key].shape)) if key in weights else "absent"
