"""Low-rank adapters of a pretrained encoder (Hu et al., 2022), through peft: only they are trained."""

from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import nn

from fedmcc.networks.fine_tuned import FineTunedEncoder, list_of_layers
from fedmcc.networks.frozen import missing_package

NAME = "default"  # of the only set of adapters, in the modules of peft


class Adapter(nn.Module):
    """The two factors, down to the rank and up again, whose product is added to the weight of a layer."""

    def __init__(self, down: nn.Linear | nn.Conv2d, up: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.down, self.up = down, up  # A and B of LoRA


class AdaptedEncoder(FineTunedEncoder):
    """An encoder whose state has only adapters; the weights of the model stay as they are in the files."""

    pretrained = False  # adapters are drawn like the weights of other networks


def add_adapters(model: nn.Module, rank: int) -> tuple[nn.Module, list[nn.Module]]:
    """A copy of the model that has adapters and shares all weights of the model."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise missing_package("peft") from None
    weights = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    adapted, names = deepcopy(model, weights), adapted_layers(model)
    options = LoraConfig(r=rank, lora_alpha=rank, target_modules=names)  # equal numbers: BA is not scaled
    with torch.random.fork_rng(devices=[]):  # peft draws weights from the global generator
        inject_adapter_in_model(options, adapted, NAME)
    layers: list[Any] = [adapted.get_submodule(name) for name in names]
    return adapted, [Adapter(layer.lora_A[NAME], layer.lora_B[NAME]) for layer in layers]


def adapted_layers(model: nn.Module) -> list[str]:
    """Names of the linear layers in the outermost list of modules; of its convolutions if it has none."""
    start = f"{list_of_layers(model)}."
    inner = [(name, module) for name, module in model.named_modules() if name.startswith(start)]
    linear = [name for name, module in inner if isinstance(module, nn.Linear)]
    # Adapters of a depthwise convolution would be larger than its kernels.
    return linear or [n for n, module in inner if isinstance(module, nn.Conv2d) and module.groups == 1]
