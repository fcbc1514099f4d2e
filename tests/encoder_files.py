"""Tiny pretrained encoders with random weights, written in the formats that the product reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]


def write_onnx(path: Path, seed: int = 0, size: int = 8, metadata: dict[str, Any] | None = None) -> Path:
    """A convolution, ReLU and the mean over all positions: 6 features."""
    from onnx import TensorProto, helper, numpy_helper, save

    weight, bias = onnx_weights(seed)
    nodes = [
        helper.make_node("Conv", ["images", "weight", "bias"], ["maps"]),
        helper.make_node("Relu", ["maps"], ["positive"]),
        helper.make_node("GlobalAveragePool", ["positive"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
    ]
    constants = [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, size, size])
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 6])
    graph = helper.make_graph(nodes, "tiny", [images], [features], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stored = {"mean": MEAN, "std": STD, "size": size} if metadata is None else metadata
    helper.set_model_props(model, {name: json.dumps(value) for name, value in stored.items()})
    save(model, path)
    return path


def onnx_weights(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Kernels and biases of the file."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(6, 3, 3, 3)).astype(np.float32), draw.normal(size=6).astype(np.float32)


def onnx_features(images: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """The features of the file for images in [0, 1], computed by torch in double precision."""
    weight, bias = (torch.from_numpy(value).double() for value in onnx_weights(seed))
    mean, std = (torch.tensor(value).double()[:, None, None] for value in (MEAN, STD))
    normal = (images.double().expand(-1, 3, -1, -1) - mean) / std
    return torch.nn.functional.conv2d(normal, weight, bias).relu().mean(dim=(2, 3)).float()


def write_folder(path: Path, kind: str) -> Any:
    """A folder as the Hugging Face hub has them; returns the vision model that was saved."""
    torch.manual_seed(0)
    model = _model(kind)
    model.eval().save_pretrained(path)
    write_preprocessor(path)
    inner = {"clip": "vision_model", "siglip": "vision_model", "resnet": "resnet"}
    return getattr(model, inner.get(kind, ""), model)


def _model(kind: str) -> Any:
    """A model of transformers with 16 features and random weights."""
    import transformers as hf

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4}
    small |= {"image_size": 8, "intermediate_size": 16}
    text = small | {"vocab_size": 8, "max_position_embeddings": 4}
    towers, maps = {"text_config": text, "vision_config": small}, {"hidden_sizes": [8, 16], "depths": [1, 1]}
    match kind:
        case "clip":
            return hf.CLIPModel(hf.CLIPConfig(**towers, projection_dim=4))
        case "siglip":
            return hf.SiglipModel(hf.SiglipConfig(**towers))
        case "resnet":
            config = hf.ResNetConfig(**maps, embedding_size=8, layer_type="basic")
            return hf.ResNetForImageClassification(config)
        case "convnext":
            return hf.ConvNextModel(hf.ConvNextConfig(**maps, num_stages=2, patch_size=2))
        case "vit":
            return hf.ViTModel(hf.ViTConfig(**small), add_pooling_layer=False)
    return hf.Dinov2Model(hf.Dinov2Config(**small, mlp_ratio=1))


def write_preprocessor(path: Path, **options: Any) -> None:
    """The preprocessor of a folder: images of 8 pixels, cropped from 9."""
    size = {"size": {"shortest_edge": 9}, "crop_size": {"height": 8, "width": 8}, "do_center_crop": True}
    content = {"do_normalize": True, "image_mean": MEAN, "image_std": STD, "rescale_factor": 1 / 255}
    (path / "preprocessor_config.json").write_text(json.dumps(content | size | options))
