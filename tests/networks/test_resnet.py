from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedmcc.errors import InputError
from fedmcc.networks import ENCODERS, EncoderOptions
from fedmcc.networks.heads import group_count
from fedmcc.networks.pretrained import load_encoder
from fedmcc.networks.resnet import ResNet18, ResNet50

# parameters with torchvision's classifier, and that classifier's 1000 x features weights and 1000 biases
PARAMETERS = {
    "resnet18": 11_689_512 - 513_000,
    "resnet34": 21_797_672 - 513_000,
    "resnet50": 25_557_032 - 2_049_000,
}
SHAPES = {"resnet18": ([2, 2, 2, 2], 2), "resnet34": ([3, 4, 6, 3], 2), "resnet50": ([3, 4, 6, 3], 3)}
FEATURES = {"resnet18": 512, "resnet34": 512, "resnet50": 2048}


def norm_names(name: str) -> list[str]:
    statistics = ["running_mean", "running_var", "num_batches_tracked"]
    return [f"{name}.{part}" for part in ["weight", "bias", *statistics]]


def block_names(block: str, convolutions: int, downsample: bool) -> list[str]:
    names = []
    for number in range(1, convolutions + 1):
        names += [f"{block}.conv{number}.weight", *norm_names(f"{block}.bn{number}")]
    return names + (
        [f"{block}.downsample.0.weight", *norm_names(f"{block}.downsample.1")] if downsample else []
    )


def torchvision_names(name: str) -> list[str]:
    depths, convolutions = SHAPES[name]
    names = ["conv1.weight", *norm_names("bn1")]
    for layer, depth in enumerate(depths, start=1):
        for block in range(depth):
            resized = block == 0 and (layer > 1 or convolutions == 3)
            names += block_names(f"layer{layer}.{block}", convolutions, resized)
    return names


def random_weights(encoder: nn.Module) -> dict[str, torch.Tensor]:
    """Random weights for every name of the encoder, and torchvision's classifier."""
    generator = torch.Generator().manual_seed(1)
    state = {key: torch.rand(value.shape, generator=generator) for key, value in encoder.state_dict().items()}
    return state | {"fc.weight": torch.rand(1000, 512), "fc.bias": torch.rand(1000)}


def colour_file(path: Path) -> Path:
    save_file(random_weights(ResNet18().build(3, 224)), path)
    return path


def without_values(options: EncoderOptions) -> nn.Module:
    """An encoder whose parameters have names and shapes only, which saves the time to draw them."""
    with torch.device("meta"):
        return options.build(3, 224)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count_is_torchvisions_without_classifier(name: str) -> None:
    encoder = without_values(ENCODERS[name]())
    assert sum(parameter.numel() for parameter in encoder.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_names_are_torchvisions(name: str) -> None:
    assert list(without_values(ENCODERS[name]()).state_dict()) == torchvision_names(name)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize(("channels", "stem"), [(1, "cifar"), (3, "imagenet")])
def test_the_number_of_features_is_as_declared(name: str, channels: int, stem: str) -> None:
    encoder = ENCODERS[name](stem=stem).build(channels, 16)
    assert encoder(torch.rand(2, channels, 16, 16)).shape == (2, encoder.features)
    assert encoder.features == FEATURES[name]


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 64 // 4), ("cifar", 64)])
def test_the_stem_divides_the_map_by_its_stride(stem: str, side: int) -> None:
    encoder = ResNet18(stem=stem).build(3, 64)
    maps = encoder.maxpool(encoder.relu(encoder.bn1(encoder.conv1(torch.rand(1, 3, 64, 64)))))
    assert maps.shape == (1, 64, side, side)
    assert encoder.layer4(encoder.layer3(encoder.layer2(encoder.layer1(maps)))).shape[-1] == side // 8


def test_stride_of_a_bottleneck_is_on_its_3x3_convolution() -> None:
    block = without_values(ResNet50()).layer2[0]
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_gradient_reaches_every_parameter(name: str, norm: str) -> None:
    encoder = ENCODERS[name](stem="cifar", norm=norm).build(1, 16)
    encoder(torch.rand(4, 1, 16, 16)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def test_block_adds_its_input() -> None:
    block = ResNet18().build(3, 32).layer1[0].eval()
    nn.init.zeros_(block.bn2.weight)
    maps = torch.rand(2, 64, 8, 8)
    assert torch.equal(block(maps), maps)


def test_group_norm_treats_images_independently() -> None:
    encoder = ResNet18(stem="cifar", norm="group").build(3, 16).train()
    images = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(encoder(images)[:1], encoder(images[:1]), rtol=1e-4, atol=1e-5)


def test_group_norm_keeps_the_names_of_weights() -> None:
    both = (without_values(ResNet18(norm=norm)) for norm in ("batch", "group"))
    batch, group = (dict(encoder.named_parameters()) for encoder in both)
    assert {key: value.shape for key, value in batch.items()} == {
        key: value.shape for key, value in group.items()
    }


@pytest.mark.parametrize(
    ("channels", "expected"),
    [(1, 1), (8, 1), (16, 1), (40, 2), (56, 2), (64, 4), (128, 8), (512, 32), (2048, 32)],
)
def test_groups_divide_channels_and_have_at_least_sixteen(channels: int, expected: int) -> None:
    assert group_count(channels) == expected
    assert channels % group_count(channels) == 0


def test_torchvision_checkpoint_loads_unchanged(tmp_path: Path) -> None:
    encoder = ResNet18(weights=colour_file(tmp_path / "w.safetensors")).build(3, 224)
    stored = random_weights(encoder)
    floating = {key: value for key, value in encoder.state_dict().items() if value.is_floating_point()}
    assert len(floating) == 20 * 5  # a kernel, scale, shift, mean and variance for each convolution
    assert all(torch.equal(value, stored[key]) for key, value in floating.items())


def test_grey_and_colour_encoders_give_the_same_features_for_a_grey_image(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(ResNet18().build(3, 32).state_dict(), path)
    grey, colour = (ResNet18(weights=path).build(channels, 32).eval() for channels in (1, 3))
    images = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(grey(images), colour(images.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)


def test_checkpoint_without_batch_counters_loads(tmp_path: Path) -> None:
    encoder = ResNet18().build(3, 224)
    state = {key: value for key, value in random_weights(encoder).items() if "num_batches" not in key}
    save_file(state, tmp_path / "w.safetensors")
    load_encoder(encoder, tmp_path / "w.safetensors")
    assert torch.equal(encoder.conv1.weight, state["conv1.weight"])


def test_the_encoder_of_a_run_loads(tmp_path: Path) -> None:
    encoder = ResNet18().build(3, 224)
    state = random_weights(encoder)
    network = {f"online.encoder.{key}": value for key, value in state.items()}
    save_file(
        {**network, "online.instance_projector.0.weight": torch.ones(2)}, tmp_path / "final.safetensors"
    )
    load_encoder(encoder, tmp_path / "final.safetensors")
    assert torch.equal(encoder.layer1[0].conv1.weight, state["layer1.0.conv1.weight"])


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no weights file '.*none\.safetensors'"):
        ResNet18(weights=tmp_path / "none.safetensors").build(3, 224)


@pytest.mark.parametrize("keep", [0, 4, 1000, -1])
def test_truncated_weights_are_named(tmp_path: Path, keep: int) -> None:
    path = colour_file(tmp_path / "w.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"w\.safetensors' is truncated or not a safetensors file"):
        ResNet18(weights=path).build(3, 224)


@pytest.mark.parametrize(
    ("name", "options", "channels", "difference"),
    [
        ("resnet50", {}, 3, "layer1.0.conv1.weight is 64x64x3x3 in the file and 64x64x1x1 in the encoder"),
        ("resnet34", {}, 3, "layer1.2.conv1.weight is absent in the file and 64x64x3x3 in the encoder"),
        (
            "resnet18",
            {"stem": "cifar"},
            1,
            "conv1.weight is 64x3x7x7 in the file and 64x1x3x3 in the encoder",
        ),
        ("resnet18", {"norm": "group"}, 3, "bn1.running_mean is 64 in the file and absent in the encoder"),
    ],
)
def test_weights_of_another_architecture_name_the_difference(
    tmp_path: Path, name: str, options: dict[str, str], channels: int, difference: str
) -> None:
    path = colour_file(tmp_path / "w.safetensors")
    with pytest.raises(InputError) as caught:
        ENCODERS[name](weights=path, **options).build(channels, 224)
    assert difference in str(caught.value)


def test_weights_that_do_not_fit_leave_the_encoder_unchanged(tmp_path: Path) -> None:
    encoder = ResNet50().build(3, 224)
    before = encoder.conv1.weight.clone()
    with pytest.raises(InputError):
        load_encoder(encoder, colour_file(tmp_path / "w.safetensors"))
    assert torch.equal(encoder.conv1.weight, before)
