"""The peers of benchmarks/peers.py, run by it in an environment of their own.

Reads one JSON array per line, [kind, peer, case], runs that work once and prints {"seconds": CPU seconds} or
{"error": why it cannot run here}. Training loops are written for this benchmark after the published
descriptions of the procedures; they are not the authors' programs.
"""

import copy
import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # no question to the network at import

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CROP, RATIO, JITTER = (0.08, 1.0), (3 / 4, 4 / 3), (0.4, 0.4, 0.4, 0.1)  # as the preset `photo`
Work = Callable[[], object]


def main() -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for line in sys.stdin:
        kind, peer, case = json.loads(line)
        try:
            work = prepare(kind, peer, json.dumps(case))
            start = time.process_time()
            work()
            reply: dict[str, Any] = {"seconds": time.process_time() - start}
        except Exception as error:  # packages of others may raise anything
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:90]}
        print(json.dumps(reply), flush=True)


@cache
def prepare(kind: str, peer: str, case: str) -> Work:
    """The work of a peer, built once."""
    options = json.loads(case)
    return VIEWS[peer](**options) if kind == "views" else EPOCHS[peer](**options)


def pictures(images: int, size: int) -> NDArray[np.uint8]:
    """Random images, height by width by colour."""
    return np.random.default_rng(0).integers(0, 256, (images, size, size, 3), dtype=np.uint8)


@cache
def torchvision() -> Any:
    """Import torchvision, also beside a torch without CUDA, where its compiled operators do not load.

    Transforms and models do not use those operators.
    """
    register = torch.library.register_fake
    try:
        torch.library.register_fake = lambda *_, **__: lambda function: function  # type: ignore[assignment]
        import torchvision
        import torchvision.transforms.v2
    finally:
        torch.library.register_fake = register
    return torchvision


def by_albumentations(batch: int, size: int) -> Work:
    """Albumentations on arrays, then float tensors."""
    import albumentations as A
    import cv2

    cv2.setNumThreads(1)
    images = pictures(batch, size)
    steps = A.Compose(
        [
            A.RandomResizedCrop(size=(size, size), scale=CROP, ratio=RATIO),
            A.HorizontalFlip(p=0.5),
            A.ColorJitter(*JITTER, p=0.8),
            A.ToGray(p=0.2),
        ]
    )

    def work() -> Tensor:
        drawn = np.stack([steps(image=image)["image"] for image in images])
        return torch.from_numpy(drawn).permute(0, 3, 1, 2).float().div_(255)  # faster than their ToTensorV2

    return work


def by_kornia(batch: int, size: int) -> Work:
    """Kornia on a batch of float tensors."""
    import kornia.augmentation as K

    images = torch.from_numpy(pictures(batch, size)).permute(0, 3, 1, 2).contiguous()
    steps = nn.Sequential(
        K.RandomResizedCrop((size, size), scale=CROP, ratio=RATIO),
        K.RandomHorizontalFlip(),
        K.ColorJitter(*JITTER, p=0.8),
        K.RandomGrayscale(p=0.2),
    )
    return lambda: steps(images.float() / 255)


def transforms(module: Any, size: int) -> list[Any]:
    """The steps of the preset `photo` in a version of torchvision's transforms."""
    return [
        module.RandomResizedCrop(size, scale=CROP, ratio=RATIO),
        module.RandomHorizontalFlip(),
        module.RandomApply([module.ColorJitter(*JITTER)], p=0.8),
        module.RandomGrayscale(p=0.2),
    ]


def by_tensors(batch: int, size: int) -> Work:
    """torchvision.transforms.v2 on byte tensors, one image at a time: a batch would share its numbers."""
    v2 = torchvision().transforms.v2
    images = torch.from_numpy(pictures(batch, size)).permute(0, 3, 1, 2).contiguous()
    steps = v2.Compose([*transforms(v2, size), v2.ToDtype(torch.float32, scale=True)])
    return lambda: torch.stack([steps(image) for image in images])


def by_pillow(batch: int, size: int) -> Work:
    """torchvision.transforms on Pillow images."""
    images, steps = pictures(batch, size), pillow_steps(size)
    return lambda: torch.stack([steps(Image.fromarray(image)) for image in images])


def pillow_steps(size: int) -> Any:
    """The published views of CC: Pillow images to float tensors."""
    v1 = torchvision().transforms
    return v1.Compose([*transforms(v1, size), v1.ToTensor()])


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Two views of each image, drawn when it is read."""

    def __init__(self, images: int, size: int) -> None:
        self.images, self.steps = pictures(images, size), pillow_steps(size)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.images[row])
        return self.steps(image), self.steps(image)


def encoder(name: str, size: int) -> tuple[nn.Module, int]:
    """A plain encoder: torchvision's ResNet-18, or convolutions of the shapes of `convnet`."""
    if name == "resnet18":
        net = torchvision().models.resnet18()
        net.fc = nn.Identity()
        return net, 512
    layers, inputs, width = [], 3, 16
    while size > 4:
        layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        inputs, width, size = width, min(2 * width, 128), size // 2
    layers += [nn.Conv2d(inputs, 128, size, bias=False), nn.BatchNorm2d(128), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers), 128


def head(inputs: int, outputs: int, hidden: int | None = None, norm: bool = False) -> nn.Sequential:
    """A projector of two layers."""
    hidden = hidden or inputs
    middle = [nn.BatchNorm1d(hidden)] if norm else []
    return nn.Sequential(nn.Linear(inputs, hidden), *middle, nn.ReLU(), nn.Linear(hidden, outputs))


def contrast(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """NT-Xent of two sets of rows, each row against all others."""
    rows = F.normalize(torch.cat([a, b]), dim=1)
    similarity = rows @ rows.T / temperature
    similarity = similarity.masked_fill(torch.eye(len(rows), dtype=torch.bool), float("-inf"))
    return F.cross_entropy(similarity, torch.arange(len(rows)).roll(len(a)))


def balance(assignments: Tensor) -> Tensor:
    """log M minus the entropy of the cluster sizes."""
    sizes = assignments.mean(dim=0)
    return float(np.log(len(sizes))) + (sizes * sizes.log()).sum()


def cc_epoch(name: str, images: int, batch: int, size: int) -> Work:
    """Contrastive clustering as published: two passes per step, joint loss, Adam."""
    net, features = encoder(name, size)
    instance, cluster = head(features, 128), nn.Sequential(head(features, 10), nn.Softmax(dim=1))
    loader = DataLoader(Pairs(images, size), batch, shuffle=True, drop_last=True)
    parts = nn.ModuleList([net, instance, cluster])
    optimizer = torch.optim.Adam(parts.parameters(), 3e-4)

    def work() -> None:
        for a, b in loader:
            optimizer.zero_grad()
            h_a, h_b = net(a), net(b)
            y_a, y_b = cluster(h_a), cluster(h_b)
            loss = contrast(instance(h_a), instance(h_b), 0.5) + contrast(y_a.T, y_b.T, 1.0)
            (loss + balance(y_a) + balance(y_b)).backward()
            optimizer.step()

    return work


def byol_epoch(name: str, images: int, batch: int, size: int) -> Work:
    """A client's epoch of federated BYOL as published with FedU: SGD, a predictor and a moving average."""
    net, features = encoder(name, size)
    online = nn.Sequential(net, head(features, 2048, 4096, norm=True))
    predictor, target = head(2048, 2048, 4096, norm=True), copy.deepcopy(online).requires_grad_(False)
    learned = [*online.parameters(), *predictor.parameters()]
    optimizer = torch.optim.SGD(learned, 0.032, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(Pairs(images, size), batch, shuffle=True, drop_last=True)

    def work() -> None:
        for a, b in loader:
            optimizer.zero_grad()
            p_a, p_b = predictor(online(a)), predictor(online(b))
            with torch.no_grad():
                z_a, z_b = target(a), target(b)
            loss = 2 - F.cosine_similarity(p_a, z_b).mean() - F.cosine_similarity(p_b, z_a).mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(target.parameters(), online.parameters(), strict=True):
                    old.mul_(0.99).add_(new, alpha=0.01)

    return work


def lightly_epoch(name: str, images: int, batch: int, size: int) -> Work:
    """SimCLR from lightly's transform, projection head and loss."""
    torchvision()
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms.simclr_transform import SimCLRTransform

    net, features = encoder(name, size)
    model = nn.Sequential(net, SimCLRProjectionHead(features, features, 128))
    transform = SimCLRTransform(size, cj_strength=0.5, min_scale=0.08, gaussian_blur=0.0, normalize=None)
    data = pictures(images, size)
    dataset = [(lambda row=row: transform(Image.fromarray(data[row]))) for row in range(images)]
    loader = DataLoader(dataset, batch, shuffle=True, drop_last=True, collate_fn=_views)
    optimizer, loss = torch.optim.Adam(model.parameters(), 3e-4), NTXentLoss(0.5)

    def work() -> None:
        for a, b in loader:
            optimizer.zero_grad()
            loss(model(a), model(b)).backward()
            optimizer.step()

    return work


def _views(drawn: list[Callable[[], list[Tensor]]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(views) for views in zip(*(draw() for draw in drawn), strict=True))


VIEWS: dict[str, Callable[..., Work]] = {
    "albumentations": by_albumentations,
    "kornia": by_kornia,
    "torchvision v2": by_tensors,
    "torchvision, Pillow": by_pillow,
}
EPOCHS: dict[str, Callable[..., Work]] = {"CC": cc_epoch, "FedBYOL": byol_epoch, "lightly": lightly_epoch}

if __name__ == "__main__":
    main()
