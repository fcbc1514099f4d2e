"""A pretrained encoder in a folder as the Hugging Face hub publishes it, run or trained by transformers.

Nothing is downloaded, no code of the folder runs, and weights are read from safetensors files only.
"""

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.frozen import hash_files, missing_package, require_identity, require_path
from fedmcc.networks.model_options import ModelOptions
from fedmcc.networks.normalise import Normalise, Triple, read_triple

WHAT = "a folder with config.json, preprocessor_config.json and model.safetensors"
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
ADAPTERS = "adapter_config.json"  # if peft is installed, transformers loads what this file names
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
ANY_SIZE = ("convnext", "convnextv2", "dinov2", "dinov2_with_registers", "resnet")
ONE_SIZE = ("clip", "clip_vision_model", "siglip", "siglip_vision_model", "vit")
FIRST_TOKEN = ("vit",)  # the pooler of ViT is part of another task; other models pool themselves

Pooling = Literal["auto", "pooler", "first", "mean"]


def pooled(model: nn.Module, images: Float[Tensor, "n 3 h w"], pooling: Pooling) -> Float[Tensor, "n d"]:
    """The pooled output of a model for normalised images."""
    outputs = model(pixel_values=images)
    last: Tensor = outputs.last_hidden_state
    if pooling == "pooler":
        own: Tensor = outputs.pooler_output
        return own.flatten(start_dim=1).float()
    if last.dim() == 4:
        return last.mean(dim=(2, 3)).float()
    return (last[:, 0] if pooling == "first" else last.mean(dim=1)).float()


@dataclass(frozen=True)
class HuggingFaceOptions(ModelOptions):
    """A pretrained folder of the Hugging Face hub; by default it is never trained, sent or stored."""

    pooling: Pooling = "auto"  # auto: the first token of a ViT, else the model's own pooling

    def resolve(self) -> "HuggingFaceOptions":
        """Record the SHA-256 of the files."""
        return replace(self, sha256=self._identity())

    def image_size(self) -> int:
        """Side of the images that the encoder was trained on, from the preprocessor."""
        return _size(_read_json(self._folder(), PREPROCESSOR), self._folder())

    def build(self, channels: int, size: int) -> nn.Module:
        """Build the encoder for square images of this size."""
        folder, identity = self._folder(), self._identity()
        kind = _read_json(folder, CONFIG).get("model_type")
        expected = self.image_size()
        if kind in ONE_SIZE and size != expected:
            raise InputError(
                f"{folder} takes images of {expected} pixels: set views.size to that, or leave it out."
            )
        pooling = self.pooling
        if pooling == "auto":
            pooling = "first" if kind in FIRST_TOKEN else "pooler"
        normalise = Normalise(*_statistics(_read_json(folder, PREPROCESSOR), folder))
        model, pool = _load_model(folder, identity), partial(pooled, pooling=pooling)
        encoder = self.wrap(model, pool, normalise, identity, pooling, version("transformers"))
        encoder.features = _width(model, pooling, folder, size)
        encoder.shape = (channels, size, size)
        return encoder

    def _folder(self) -> Path:
        folder = require_path(self.path, WHAT)
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder: set encoder.path to {WHAT}.")
        return folder

    def _identity(self) -> str:
        folder = self._folder()
        _check_files(folder)
        weights = tuple(path.name for path in folder.glob("*.safetensors*"))
        identity = hash_files(folder, (CONFIG, PREPROCESSOR, *weights))
        require_identity(folder, identity, self.sha256)
        return identity


def _check_files(folder: Path) -> None:
    """Refuse a folder with code, with weights in a pickle only, or with a file missing or truncated."""
    if code := sorted(folder.rglob("*.py")):
        raise InputError(f"{folder} has code ({code[0].name}), which is never run: use a model without code.")
    for name in (CONFIG, PREPROCESSOR):
        if "auto_map" in _read_json(folder, name):
            raise InputError(
                f"{folder / name} asks for code of its own (auto_map), which is never run: "
                "use a model of transformers."
            )
    if (folder / ADAPTERS).exists():
        raise InputError(f"{folder} has adapters ({ADAPTERS}), which are not read: use a model without them.")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        found = f"weights only in a pickle ({pickles[0]})" if pickles else "no weights"
        raise InputError(f"{folder} has {found}: fetch model.safetensors of the same model.")
    for path in weights:
        try:
            with safe_open(path, "pt"):
                pass
        except (SafetensorError, OSError):
            raise InputError(f"{path} is truncated or not a safetensors file: fetch it again.") from None


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise InputError(f"{folder} has no {name}: fetch it from where the weights come from.")
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        raise InputError(f"{path} is truncated or not JSON: fetch it again.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not an object of options: fetch it again.")
    return content


def _size(options: dict[str, Any], folder: Path) -> int:
    """Side of the images: of the crop if images are cropped, else of the resized image."""
    crop = options.get("crop_size") if options.get("do_center_crop", "crop_size" in options) else None
    size = crop or options.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    if not isinstance(size, int) or size < 1:
        raise InputError(f"{folder / PREPROCESSOR} has no image size: fetch it again.")
    return size


def _statistics(options: dict[str, Any], folder: Path) -> tuple[Triple, Triple]:
    """Mean and standard deviation of each channel of images in [0, 1]."""
    if not options.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if not math.isclose(options.get("rescale_factor", 1 / 255), 1 / 255, rel_tol=1e-3):
        raise InputError(f"{folder / PREPROCESSOR} scales pixels in an unsupported way: use another model.")
    if "image_mean" not in options or "image_std" not in options:
        raise InputError(f"{folder / PREPROCESSOR} has no image_mean and image_std: fetch it again.")
    return read_triple(options["image_mean"], "mean"), read_triple(options["image_std"], "standard deviation")


@lru_cache(maxsize=1)
def _load_model(folder: Path, identity: str) -> nn.Module:
    """The vision model in a folder with this SHA-256."""
    options = _read_json(folder, CONFIG)
    kind = options.pop("model_type", None)
    if kind not in (*ANY_SIZE, *ONE_SIZE):
        raise InputError(
            f"{folder} is a model of type '{kind}': give one of {', '.join(sorted((*ANY_SIZE, *ONE_SIZE)))}."
        )
    try:
        from transformers import AutoConfig, AutoModel
        from transformers.utils import logging
    except ImportError:
        raise missing_package("transformers") from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.for_model(kind, **options)
        config = getattr(config, "vision_config", config)
        model, report = AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # transformers documents none
        raise InputError(
            f"{folder} cannot be loaded ({type(error).__name__}): fetch its files again."
        ) from None
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name or kind != "vit")
    if missing or report["mismatched_keys"]:
        name = (missing or sorted(map(str, report["mismatched_keys"])))[0]
        raise InputError(f"The weights in {folder} lack {name}: fetch config.json and weights of one model.")
    return model  # type: ignore[no-any-return]


def _width(model: nn.Module, pooling: Pooling, folder: Path, size: int) -> int:
    """Number of features, from a black image."""
    try:
        with torch.no_grad():
            device = next(model.parameters()).device
            return pooled(model, torch.zeros((1, 3, size, size), device=device), pooling).shape[1]
    except (ValueError, RuntimeError, AttributeError, TypeError):
        raise InputError(
            f"{folder} cannot encode images of {size} pixels: leave out views.size and encoder.pooling."
        ) from None
