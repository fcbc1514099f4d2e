"""Gradient inversion: searches for views of images that give an observed update (Geiping et al. 2020)."""

from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import State

STEPS, RATE, SMOOTHNESS = 200, 0.1, 1e-3
TEMPERATURE = 0.5  # tau_I


class Seen(NamedTuple):
    """What an observer has: the weights that were sent, and those that came back."""

    sent: State
    returned: State
    images: int


class Result(NamedTuple):
    """Reconstructed views, the true ones in the same order, and their mean correlation."""

    found: Tensor
    true: Tensor
    correlation: float


def contrast(u: Tensor, v: Tensor) -> Tensor:
    """L(u, v; tau) of the paper in operations that can be differentiated twice."""
    u, v = nn.functional.normalize(u, dim=1), nn.functional.normalize(v, dim=1)
    others = ~torch.eye(len(u), dtype=torch.bool)
    pairs = torch.cat([(u @ u.T)[others].view(len(u), -1), (u @ v.T)[others].view(len(u), -1)], dim=1)
    return (torch.logsumexp(pairs / TEMPERATURE, dim=1) - (u * v).sum(dim=1) / TEMPERATURE).mean()


class Inversion:
    """Searches for views that give an observed update."""

    def __init__(self, net: Network, seen: Seen, adam: bool = True) -> None:
        self.net, self.seen, self.adam = net, seen, adam
        self.parameters = {name: value for name, value in net.named_parameters() if name in seen.sent}
        self.change = {name: seen.sent[name] - seen.returned[name] for name in self.parameters}
        self.statistics: list[tuple[str, Tensor, Tensor]] = []
        for name, module in net.online.encoder.named_modules():
            if isinstance(module, nn.BatchNorm2d):
                module.register_forward_pre_hook(self._store(f"online.encoder.{name}"))

    def run(self, start: Tensor) -> Tensor:
        """Reconstructed views a and b of all images of the client, from views of other images."""
        dummy = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([dummy], lr=RATE)
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
            optimizer.zero_grad()
            distance = self._distance(dummy) + SMOOTHNESS * _roughness(dummy)
            (gradient,) = torch.autograd.grad(distance, [dummy])
            dummy.grad = gradient.sign()
            optimizer.step()
            with torch.no_grad():
                dummy.clamp_(0, 1)
        return dummy.detach().flatten(end_dim=1)

    def _distance(self, dummy: Tensor) -> Tensor:
        self.statistics.clear()
        self.net.train()
        gradients = step_gradients(self.net, self.parameters, *dummy, create_graph=True)
        own = torch.cat([gradient.flatten() for gradient in gradients])
        if self.adam:  # its first step is almost the sign of the gradient
            own = own / (own.abs() + 0.1 * own.abs().mean().detach())
        observed = torch.cat([change.flatten() for change in self.change.values()])
        return 1 - nn.functional.cosine_similarity(own, observed, dim=0) + self._statistics_distance()

    def _store(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor]) -> None:
            axes = (0, 2, 3)
            self.statistics.append((name, inputs[0].mean(axes), inputs[0].var(axes)))

        return hook

    def _statistics_distance(self) -> Tensor:
        """How far the changes of the running statistics point from those that were observed."""
        own, observed = [], []
        for name in sorted({name for name, *_ in self.statistics}):
            first, second = [entry[1:] for entry in self.statistics if entry[0] == name]
            for key, a, b in zip(("running_mean", "running_var"), first, second, strict=True):
                old = self.seen.sent[f"{name}.{key}"]
                own.append(0.09 * (a - old) + 0.1 * (b - old))
                observed.append(self.seen.returned[f"{name}.{key}"] - old)
        if not own:
            return torch.zeros(())
        return 1 - nn.functional.cosine_similarity(torch.cat(own), torch.cat(observed), dim=0)


def step_gradients(
    net: Network, parameters: dict[str, Tensor], a: Tensor, b: Tensor, create_graph: bool = False
) -> tuple[Tensor, ...]:
    """The gradient of L_I in the first step, when the target is a copy of the online network."""
    online = net.online
    z_a, z_b = online.instance(online.encoder(a)), online.instance(online.encoder(b))
    loss = 0.5 * (contrast(z_a, z_b.detach()) + contrast(z_a.detach(), z_b))
    return torch.autograd.grad(loss, list(parameters.values()), create_graph=create_graph)


def _roughness(images: Tensor) -> Tensor:
    return (images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()) / 2


def compare(found: Tensor, true: Tensor) -> Result:
    """Assign reconstructions to true views so that their correlations are largest."""
    rows = [
        nn.functional.normalize(each.flatten(1) - each.flatten(1).mean(1, keepdim=True), dim=1)
        for each in (found, true)
    ]
    correlations = rows[0] @ rows[1].T
    first, second = linear_sum_assignment(-correlations.numpy())
    return Result(found[first], true[second], float(correlations[first, second].mean()))
