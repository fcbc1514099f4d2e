"""A mean over the images of all clients, from which each client subtracts its own part."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedmcc.messages import Task, Update
from fedmcc.methods.base import Memory, Stage
from fedmcc.numerics.state_dicts import State

IMAGES, LIMIT, EQUAL = "samples", "limit", "equal"  # extras: all images; as how many a client counts


def mean_over_images(stage: Stage, updates: Sequence[Update], key: str) -> State:
    """Extras for the next tasks: the mean of the clients' extras by images, and the number of images."""
    weights = torch.tensor(stage.counts(updates), dtype=torch.float64)
    values = torch.stack([update.extras[key] for update in updates])
    mean = torch.einsum("k,k...->...", weights / weights.sum(), values.double()).to(values.dtype)
    extras = {key: mean, IMAGES: weights.sum().long()}
    if stage.equal_clients:  # only shares matter: the clients' numbers of images stay with the server
        extras |= {IMAGES: torch.tensor(len(updates)), EQUAL: torch.tensor(1)}
    elif weights.max() < max(update.samples for update in updates):
        extras[LIMIT] = weights.max().long()  # a client with more images counts as one with this number
    return extras


def part_of_others(own: Tensor, key: str, task: Task, memory: Memory) -> tuple[Tensor, Tensor]:
    """The other clients' part of the mean in a task, and this client's share of all images.

    The mean does not contain `own`, this client's, if it did not take part in the previous round. In the
    first round there is no mean: the part is 0 and the share 1.
    """
    others, share = torch.zeros_like(own), torch.ones(())
    if key in task.extras:
        own_count, all_count = memory["samples"].double(), task.extras[IMAGES].double()
        if LIMIT in task.extras:
            own_count = own_count.minimum(task.extras[LIMIT].double())
        if EQUAL in task.extras:  # clipped clients have the same weight
            own_count = task.extras[EQUAL].double()
        total = all_count * task.extras[key].double()
        if memory.get("round") == task.round - 1:
            total -= own_count * own.double().cpu()
        else:
            all_count = all_count + own_count
        others, share = total / all_count, own_count / all_count
    memory["round"] = torch.tensor(task.round)
    return others, share
