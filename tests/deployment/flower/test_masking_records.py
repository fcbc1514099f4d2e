"""Messages of secure aggregation: they arrive as they were sent, and malformed ones are one known error."""

import json

import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmcc.deployment.flower import masking_records as records
from fedmcc.deployment.flower.records import FACTS, Failure, UnreadableError, pack_failure
from fedmcc.deployment.messages import Attempt, Peer
from fedmcc.federation.secure_aggregation.participant import PublicKeys, Revealed, Shares

ATTEMPT = Attempt("run", "joint", 3, "token", "sent", {0: 10, 4: 20})
KEYS = PublicKeys(b"s" * 32, b"m" * 32)
READ = (
    records.unpack_keys,
    records.unpack_shares,
    records.unpack_confirmation,
    records.unpack_revealed,
    records.unpack_attempt,
)


def test_every_message_arrives_as_it_was_sent():
    peers = {4: Peer("north", KEYS, b"signature", b"ssh key")}
    attempt, content = records.unpack_attempt(records.pack_attempt(ATTEMPT, records.peers_table(peers)))
    assert (attempt, records.read_peers(content)) == (ATTEMPT, peers)
    assert records.unpack_keys(records.pack_keys(KEYS, b"signed")) == (KEYS, b"signed")
    shares = Shares({4: b"sealed"}, {4: (b"1" * 32, b"2" * 32)}, b"3" * 32)
    assert records.unpack_shares(records.pack_shares(shares)) == shares
    assert records.unpack_confirmation(records.pack_confirmation(b"signed")) == b"signed"
    revealed = Revealed({0: b"pair"}, {4: b"own"})
    assert records.unpack_revealed(records.pack_revealed(revealed)) == revealed


def test_a_failure_is_read_as_a_failure():
    failure = pack_failure(Failure("It cannot."))
    assert [read(failure) for read in READ[:4]] == [Failure("It cannot.")] * 4


def test_every_field_of_an_attempt_changes_its_context():
    changed = [{name: "x"} for name in ("run", "stage", "token", "sent")]
    changed += [{"round": 4}, {"images": {0: 11, 4: 20}}]
    contexts = {ATTEMPT.context, *(ATTEMPT._replace(**each).context for each in changed)}
    assert len(contexts) == 7


def test_keys_of_another_length_are_refused():
    content = json.dumps(["00" * 31, "00" * 32, ""])
    with pytest.raises(UnreadableError, match="another length"):
        records.unpack_keys(RecordDict({FACTS: ConfigRecord({"content": content})}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_whatever_a_site_sends_is_read_or_is_unreadable(content):
    message = RecordDict({FACTS: ConfigRecord({"content": json.dumps(content)})})
    for read in READ:
        try:
            read(message)
        except UnreadableError:
            continue
