"""A site draws its views and batches from a secret of its own, unless the recipe asks for reproducibility."""

import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from fedmcc.deployment.flower.records import unpack_reply
from fedmcc.deployment.site.app import client_app
from fedmcc.deployment.site.memory import SECRET
from fedmcc.storage.safetensor_files import load_state

pytestmark = pytest.mark.slow  # whole runs

OWN = {"reproducible": False}


@pytest.fixture
def patient(three):
    """Three sites whose server waits as long as they need."""

    def make(name="fedema", **options):
        federation = three(name, **options)
        federation.options["round_timeout"] = 900.0
        return federation

    return make


def _first_updates(federation, run):
    """The updates of all sites in the first round, before the server averages them."""
    updates = []

    def record(message, reply):
        if message.metadata.message_type == "train":
            updates.append(unpack_reply(reply.content, client=0).update)
        return reply

    federation.grid.spoil = record
    next(federation.serve(run))
    return updates


def _equal(first, second):
    return all(torch.equal(value, second.weights[name]) for name, value in first.weights.items())


@pytest.mark.parametrize("reproducible", [False, True])
def test_the_server_can_repeat_a_sites_training_only_if_the_recipe_says_so(patient, reproducible, caplog):
    federation = patient(privacy={"reproducible": reproducible})
    site = _first_updates(federation, "run")
    guess = _first_updates(federation, "other")  # the right images, weights and seed, and another secret
    assert [_equal(*pair) for pair in zip(site, guess, strict=True)] == [reproducible] * 3
    assert ("can repeat this site's random draws" in caplog.text) == reproducible


def test_the_secret_is_private_and_the_same_in_all_rounds(patient, tmp_path):
    events = patient(privacy=OWN).serve()
    next(events)
    secrets = {path: path.read_bytes() for path in sorted(tmp_path.rglob(SECRET))}
    assert len(set(secrets.values())) == 3
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in secrets)
    next(events)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob(SECRET))} == secrets


def test_a_federation_with_secrets_resumes_bit_identically(patient, tmp_path):
    federation = patient("fedmcc", privacy=OWN)
    list(islice(federation.serve(), 1))
    shutil.copytree(tmp_path, tmp_path.parent / "copy")
    copy = patient("fedmcc", privacy=OWN)
    copy.folder = tmp_path.parent / "copy"
    copy.grid.nodes = {10 + part: copy.node("cab"[part]) for part in range(3)}
    for one in (federation, copy):
        list(islice(one.serve(), 1 if one is copy else None))
    list(copy.serve())  # stopped once more
    final = [load_state(one.folder / "run/checkpoints/final.safetensors") for one in (federation, copy)]
    assert all(torch.equal(value, final[1][name]) for name, value in final[0].items())


def test_a_simulated_site_draws_what_a_simulated_client_does(patient, tmp_path):
    federation = patient(privacy=OWN)
    node = {"partition-id": 0, "num-partitions": 3}
    next(federation.serve())
    message = next(m for m in federation.grid.sent if m.metadata.message_type == "train")
    client_app(message, Context(1, 1, node, RecordDict(), {"sites": str(tmp_path / "simulated")}))
    (state,) = Path(tmp_path / "simulated").rglob("*.safetensors")
    assert not list(state.parent.glob(SECRET))
