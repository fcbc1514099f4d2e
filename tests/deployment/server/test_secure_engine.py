"""Secure aggregation between sites: the plain average, although the server never gets a single update."""

import json

import numpy as np
import pytest
from flwr.app import Error, Message

from fedmcc.deployment.flower.masking_records import MASKED
from fedmcc.deployment.flower.records import FACTS, unpack_reply
from fedmcc.deployment.server.mailbox import Mailbox
from fedmcc.deployment.site.memory import MASKS, SiteMemory
from fedmcc.federation.rounds import RoundFailedError
from fedmcc.federation.secure_aggregation.quantise import STEP
from fedmcc.federation.secure_aggregation.vectors import Layout
from fedmcc.numerics.state_dicts import weighted_average
from fedmcc.storage.safetensor_files import load_state

pytestmark = pytest.mark.slow  # whole runs

SECURE = {"secure_aggregation": True, "attempts": 1}
SMALL = {"hidden": 8, "projections": 4}


@pytest.fixture
def updates(monkeypatch):
    """The updates that sites encode, in order, before they are masked."""
    encoded = []
    original = Layout.encode
    monkeypatch.setattr(
        Layout, "encode", lambda self, update: encoded.append(update) or original(self, update)
    )
    return encoded


@pytest.fixture
def received(monkeypatch):
    """Every reply that the server's mailbox returns, by the type of the message."""
    replies = []
    original = Mailbox.receive

    def receive(self, sent, until=float("inf")):
        kinds = {id: self._pending[id].letter.kind for id in sent}
        found = original(self, sent, until)
        replies.extend((kinds[each.sent], each.content) for each in found)
        return found

    monkeypatch.setattr(Mailbox, "receive", receive)
    return replies


def last_model(federation):
    (file,) = (federation.folder / "run/resume").glob("model-*.safetensors")
    return load_state(file)


def drop_out(federation, name, kind, nth=1):
    """Lose the nth reply of a site to messages of this type."""
    node = next(number for number, each in federation.grid.nodes.items() if each["client"] == name)
    seen = []

    def spoil(message, reply):
        if (message.metadata.dst_node_id, message.metadata.message_type) == (node, kind):
            seen.append(message)
            if len(seen) == nth:
                return Message(Error(8, ""), reply_to=message)
        return reply

    federation.grid.spoil = spoil


@pytest.mark.parametrize(
    "kind", [None, "query.keys", "query.shares", "train", "query.confirm", "query.reveal"]
)
def test_the_model_is_the_plain_average_whenever_a_site_drops_out(kind, four, updates):
    federation = four(federation=SECURE)
    if kind:
        drop_out(federation, "b", kind)
    event = next(federation.serve())
    expected = [0, 2, 3] if kind in ("query.keys", "query.shares", "train") else [0, 1, 2, 3]
    assert event.row["participants"] == expected
    assert set(event.row.get("reasons", {})) == {"0", "1", "2", "3"} - set(map(str, expected))
    present = sorted((update for update in updates if update.client in expected), key=lambda u: u.client)
    counts = [float(update.samples) for update in present]
    average = weighted_average([update.weights for update in present], counts)
    bound = 4 * STEP / 2 * 60 / sum(counts) + 1e-6  # of 60 images in all; and the rounding of float32
    model = last_model(federation)
    for name, value in average.items():
        assert (model[name].double() - value.double()).abs().max() <= bound


def test_the_server_receives_nothing_but_masked_vectors_and_integers(three, updates, received):
    federation = three(federation=SECURE, encoder={"width": 16})
    next(federation.serve())
    replies = [unpack_reply(content, 0).update for kind, content in received if kind == "train"]
    assert len(replies) == len(updates) == 3
    for reply in replies:
        assert not reply.extras
        assert not any(value.is_floating_point() for value in reply.weights.values())
        vector = reply.weights[MASKED].numpy().view(np.uint32)
        assert _is_uniform(vector >> 28)
        assert _is_uniform(vector & 15)
    others = [set(content[FACTS]) for kind, content in received if kind.startswith("query.") and content]
    assert all(facts == {"content"} for facts in others if "name" not in facts)


def _is_uniform(digits):
    """Chi-squared test of 16 equally likely digits: above 50 with a probability below 1e-5."""
    expected = len(digits) / 16
    assert expected > 20
    return ((np.bincount(digits, minlength=16) - expected) ** 2 / expected).sum() < 50


def test_masked_vectors_do_not_correlate_with_the_updates(three, received, monkeypatch):
    plain = []
    original = Layout.encode
    monkeypatch.setattr(
        Layout, "encode", lambda self, update: plain.append(original(self, update)) or plain[-1].copy()
    )
    next(three(federation=SECURE, encoder={"width": 16}).serve())
    masked = [unpack_reply(c, 0).update.weights[MASKED].numpy() for kind, c in received if kind == "train"]
    for vector in masked:
        for update in plain:
            own, true = vector.astype(float), update.view(np.int32).astype(float)
            assert abs(np.corrcoef(own, true)[0, 1]) < 5 / np.sqrt(len(own))


def test_clipped_updates_count_equally(three, updates):
    federation = three(federation=SECURE, privacy={"clip": 0.05, "reproducible": True})
    next(federation.serve())
    average = weighted_average([update.weights for update in updates], [1.0] * 3)
    model = last_model(federation)
    assert all((model[n].double() - v.double()).abs().max() <= 3 * STEP + 1e-6 for n, v in average.items())


def test_statistics_that_can_be_added_up_are_masked_and_centroids_are_sent_as_the_recipe_says(
    three, received
):
    federation = three("informative", federation={**SECURE, "open_statistics": True})
    rows = [event.row for event in federation.serve() if hasattr(event, "row")]
    assert all(row["participants"] == [0, 1, 2] for row in rows)
    readable = {
        unpack_reply(content, 0).update.stage
        for kind, content in received
        if kind == "train" and unpack_reply(content, 0).update.extras
    }
    assert readable == {"prototypes"}


def test_too_few_sites_fail_the_round_with_the_reason(three, caplog):
    federation = three(federation=SECURE, evaluation={})
    federation.grid.spoil = lambda message, reply: (
        Message(Error(8, ""), reply_to=message)
        if message.metadata.message_type == "query.shares" and message.metadata.dst_node_id != 10
        else reply
    )
    with pytest.raises(RoundFailedError):
        next(federation.serve())
    assert "1 of 3 participants have shared their secrets, but 3 are needed" in caplog.text


def test_a_task_that_would_send_an_update_openly_is_refused_before_training(three, caplog, monkeypatch):
    monkeypatch.setattr(
        "fedmcc.deployment.server.secure_engine.SecureSiteEngine._site_task",
        lambda self, task: super(type(self), self)._site_task(task),
    )
    trained = []
    monkeypatch.setattr(SiteMemory, "save", lambda *_: trained.append(1))
    with pytest.raises(RoundFailedError):
        next(three(federation=SECURE).serve())
    assert "the task would send the update openly" in caplog.text
    assert not trained


def test_a_server_that_replaces_a_sites_keys_is_found(three, caplog, monkeypatch):
    """The server signs with a key of its own and says that it is the key of site b."""
    from fedmcc.deployment.setup.certificates import create_site_key

    federation, fake = three(federation=SECURE), create_site_key().public
    original = Mailbox.registered_key
    monkeypatch.setattr(
        Mailbox, "registered_key", lambda self, site: fake if site == "b" else original(self, site)
    )
    with pytest.raises(RoundFailedError):
        next(federation.serve())
    assert "The keys of site b are not signed by that site." in caplog.text


def test_a_site_with_another_key_than_before_is_refused_by_the_others(three, caplog):
    federation = three(federation=SECURE)
    for name in "abc":
        federation.operator.site(name).peers.write_text(json.dumps({"b": "0" * 64}))
    with pytest.raises(RoundFailedError):
        next(federation.serve())
    assert "Site b has another key than before: if its owner confirms the SHA-256" in caplog.text


def test_after_a_round_a_site_has_the_keys_of_all_sites_and_no_secret_of_the_round(three):
    federation = three(federation=SECURE)
    next(federation.serve())
    assert not list(federation.folder.rglob(MASKS))
    known = [json.loads(federation.operator.site(name).peers.read_text()) for name in "abc"]
    assert known[0] == known[1] == known[2]
    assert set(known[0]) == set("abc")
    assert len(set(known[0].values())) == 3


def test_a_site_reveals_nothing_for_a_sum_of_fewer_sites_than_its_recipe_needs(three, caplog):
    federation = three(federation=SECURE)  # 3 by default
    drop_out(federation, "b", "query.keys")
    with pytest.raises(RoundFailedError):
        next(federation.serve())
    assert "A sum of 2 sites would reveal too much: 3 are needed." in caplog.text


def test_three_sites_without_the_one_that_broke_an_attempt_are_two(three):
    """Three sites bear no drop-out: the attempt is repeated without the site, if the recipe allows two."""
    federation = three(federation={"secure_aggregation": True, "minimum": 2})
    drop_out(federation, "b", "train")
    row = next(federation.serve()).row
    assert (row["attempt"], row["participants"], row["dropped"]) == (2, [0, 2], [0, 1, 2, 1])


def test_a_site_refuses_a_wrong_number_of_its_images(three, caplog, monkeypatch):
    """A server that gives one site all the weight could read its update from the average."""
    monkeypatch.setattr(
        "fedmcc.deployment.server.secure_engine.SecureSiteEngine._hello",
        lambda self, task: self.sites.members[self.sites.names[task.client]].hello._replace(
            samples=1000 if task.client == 0 else 1
        ),
    )
    with pytest.raises(RoundFailedError):
        next(three(federation=SECURE).serve())
    assert "another number of images than the server uses" in caplog.text
