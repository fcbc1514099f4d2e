"""Secure aggregation as a whole: the sum is exact, drop-outs are tolerated, and liars are refused."""

import numpy as np
import pytest

from fedmcc.federation.secure_aggregation.collector import Collector
from fedmcc.federation.secure_aggregation.errors import ProtocolError
from fedmcc.federation.secure_aggregation.participant import Participant, PublicKeys, commitment, quorum

CONTEXT, LENGTH = b"run stage 1 1", 50
SOME = np.random.default_rng(1).integers(0, 2**32, (7, LENGTH), dtype=np.uint32)


class Round:
    """A round of participants with the first vectors of SOME, of which some stop at a step."""

    def __init__(self, count, silent=(), dropped=(), lost=()):
        self.people = {index: Participant(index, CONTEXT) for index in range(count)}
        keys = {index: person.public_keys for index, person in self.people.items()}
        self.collector = Collector(CONTEXT, keys, LENGTH)
        self.keys, self.dropped, self.lost = keys, dropped, lost
        for index, person in self.people.items():
            if index not in silent:
                self.collector.add_shares(index, person.share(keys, self.collector.threshold))
        self.sharing = [index for index in self.people if index not in silent]

    def mask(self):
        self.masked = {
            index: self.people[index].mask(SOME[index], self.collector.sealed_for(index))
            for index in self.sharing
            if index not in self.dropped
        }
        for index, vector in self.masked.items():
            self.collector.add_masked(index, vector)
        return self

    def confirm(self):
        received = self.collector.close()
        for index in received:
            self.people[index].confirm(received)
        return received

    def reveal(self):
        received = self.confirm()
        for index in received:
            if index not in self.lost:
                self.collector.add_revealed(index, self.people[index].reveal(received))
        return self

    def restart(self):
        """Continue with participants that were written to disk and read again."""
        self.people = {index: Participant.load(person.dump()) for index, person in self.people.items()}
        return self

    def expected(self):
        return SOME[sorted(self.masked)].sum(axis=0, dtype=np.uint32)


@pytest.mark.parametrize(
    ("count", "stops"),
    [
        (2, {}),
        (3, {}),
        (4, {"dropped": [1]}),
        (5, {"silent": [0]}),
        (6, {"dropped": [4]}),
        (7, {"silent": [2], "dropped": [3]}),
        (7, {"dropped": [0], "lost": [5]}),
        (7, {"dropped": [0, 4]}),
    ],
)
def test_the_sum_is_that_of_the_vectors_that_were_received(count, stops):
    done = Round(count, **stops).mask().reveal()
    assert np.array_equal(done.collector.total(), done.expected())


def test_neither_a_single_vector_nor_the_masked_sum_shows_anything_plain():
    first, second = Round(4).mask(), Round(4).mask()
    for index in range(4):
        assert not np.array_equal(first.masked[index], SOME[index])
        assert not np.array_equal(first.masked[index], second.masked[index])  # new masks in every round
    assert not np.array_equal(sum(first.masked.values()), first.expected())  # own masks are left in the sum


def test_masked_numbers_are_spread_evenly():
    """The highest four bits of 16 * 500 masked zeros: chi-square with 15 degrees of freedom, p = 1e-6."""
    keys = {index: Participant(index, CONTEXT) for index in range(2)}
    public = {index: person.public_keys for index, person in keys.items()}
    shares = {index: person.share(public, 2) for index, person in keys.items()}
    sealed = {owner: each.sealed[0] for owner, each in shares.items()}
    masked = keys[0].mask(np.zeros(8000, np.uint32), sealed)
    counts = np.bincount(masked >> 28, minlength=16)
    assert ((counts - 500) ** 2 / 500).sum() < 56.5


def test_too_many_drop_outs_end_the_round_without_a_sum():
    done = Round(5, dropped=[0, 1, 2]).mask()
    with pytest.raises(ProtocolError, match="2 vectors were received, but 4 are needed"):
        done.reveal()
    with pytest.raises(ProtocolError, match="0 shares of participant 3 are known, but 4 are needed"):
        done.collector.total()
    with pytest.raises(
        ProtocolError, match="2 of 5 participants have shared their secrets, but 4 are needed"
    ):
        Round(5, silent=[0, 1, 2]).mask()


def test_a_wrong_share_is_refused_and_its_holder_named():
    done = Round(4, dropped=[3]).mask()
    received = done.confirm()
    honest = done.people[1].reveal(received)
    for kind, owner in (("own", 0), ("pair", 3)):
        shares = getattr(honest, kind)
        wrong = honest._replace(**{kind: {**shares, owner: bytes(len(shares[owner]))}})
        with pytest.raises(
            ProtocolError, match=f"Participant 1 reveals a wrong share of participant {owner}"
        ):
            done.collector.add_revealed(1, wrong)
    swapped = honest._replace(own={**honest.own, 0: honest.own[2], 2: honest.own[0]})
    with pytest.raises(ProtocolError, match="a wrong share"):
        done.collector.add_revealed(1, swapped)


def test_the_sum_survives_a_liar_whose_shares_are_refused():
    done = Round(4).mask()
    received = done.confirm()
    for index in received:
        revealed = done.people[index].reveal(received)
        if index == 2:
            revealed = revealed._replace(own={**revealed.own, 0: bytes(66)})
            with pytest.raises(ProtocolError):
                done.collector.add_revealed(index, revealed)
        else:
            done.collector.add_revealed(index, revealed)
    assert np.array_equal(done.collector.total(), done.expected())


def test_an_owner_who_commits_to_wrong_shares_is_named():
    done = Round(3, silent=[0])
    shares = done.people[0].share(done.keys, 3)
    done.collector.add_shares(0, shares._replace(seed=commitment(CONTEXT, "seed", bytes(32), 0)))
    done.sharing = [0, 1, 2]
    with pytest.raises(ProtocolError, match="The shares of participant 0 do not give its seed"):
        done.mask().reveal().collector.total()


def test_a_participant_never_reveals_both_shares_of_an_owner():
    person = Round(5).mask().people[0]
    person.confirm([0, 1, 2, 3])
    revealed = person.reveal([0, 1, 2, 3])
    assert revealed.own.keys() == {0, 1, 2, 3}
    assert revealed.pair.keys() == {4}
    with pytest.raises(ProtocolError, match="reveals its shares once"):
        person.reveal([0, 1, 2, 3])


@pytest.mark.parametrize("received", [[1, 2, 3], [0, 1, 2, 9]])
def test_a_participant_confirms_no_list_that_cannot_be_true(received):
    with pytest.raises(ProtocolError, match="do not take part"):
        Round(4).mask().people[0].confirm(received)


def test_a_participant_confirms_one_list_even_after_a_restart():
    done = Round(5).mask()
    done.people[0].confirm([0, 1, 2, 3])
    person = done.restart().people[0]
    person.confirm([3, 2, 1, 0])
    with pytest.raises(ProtocolError, match="confirms one list"):
        person.confirm([0, 1, 2, 4])


def test_a_server_that_tells_five_sites_two_lists_unmasks_nothing_with_one_accomplice():
    """Of a, b, c, d and e, the last one helps: it confirms both lists, with and without site a."""
    done = Round(5).mask()
    with_first, without = [0, 1, 2, 4], [1, 2, 3, 4]
    done.people[0].confirm(with_first), done.people[1].confirm(with_first)
    done.people[2].confirm(without), done.people[3].confirm(without)
    for index, confirming in ((0, [0, 1, 4]), (1, [0, 1, 4]), (2, [2, 3, 4]), (3, [2, 3, 4])):
        with pytest.raises(ProtocolError, match="3 participants have confirmed the list"):
            done.people[index].reveal(confirming)


@pytest.mark.parametrize(("count", "fewest"), [(2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (7, 5)])
def test_a_threshold_of_two_thirds_or_less_is_refused(count, fewest):
    people = [Participant(index, CONTEXT) for index in range(count)]
    keys = {person.index: person.public_keys for person in people}
    for threshold in (0, 2 * count // 3, count + 1):
        with pytest.raises(ProtocolError, match="more than two thirds must be needed"):
            people[0].share(keys, threshold)
    assert quorum(count) == fewest
    people[0].share(keys, fewest)


def test_changed_and_repeated_keys_are_refused():
    people = [Participant(index, CONTEXT) for index in range(3)]
    keys = {person.index: person.public_keys for person in people}
    with pytest.raises(ProtocolError, match="changed a public key"):
        people[0].share({**keys, 0: PublicKeys(bytes(32), bytes(32))}, 2)
    with pytest.raises(ProtocolError, match="the same public key"):
        people[0].share({**keys, 3: keys[1]}, 3)


def test_a_late_or_repeated_vector_does_not_count():
    done = Round(4, dropped=[2]).mask()
    with pytest.raises(ProtocolError, match="does not belong to this round"):
        done.collector.add_masked(0, done.masked[0])
    late = done.people[2].mask(SOME[2], done.collector.sealed_for(2))
    done.reveal()
    with pytest.raises(ProtocolError, match="does not belong to this round"):
        done.collector.add_masked(2, late)
    assert np.array_equal(done.collector.total(), done.expected())


def test_shares_of_another_round_cannot_be_opened():
    done = Round(3).mask()
    other = Participant(1, b"run stage 2 1")
    shares = other.share({**done.keys, 1: other.public_keys}, 3)
    person = Participant(0, CONTEXT)
    keys = {**done.keys, 0: person.public_keys, 1: other.public_keys}
    own = person.share(keys, 3)
    person.mask(SOME[0], {0: own.sealed[0], 1: shares.sealed[0], 2: shares.sealed[2]})
    person.confirm([0, 1, 2])
    assert person.reveal([0, 1, 2]).own.keys() == {0}


def test_participants_that_are_stored_between_all_steps_give_the_same_sum():
    done = Round(7, silent=[2], dropped=[3]).restart().mask().restart().reveal()
    assert (done.collector.total() == done.expected()).all()


def test_a_stored_participant_neither_masks_nor_reveals_twice():
    done = Round(3).mask().restart()
    with pytest.raises(ProtocolError, match="masks one vector"):
        done.people[0].mask(SOME[0], done.collector.sealed_for(0))
    done.reveal()
    with pytest.raises(ProtocolError, match="reveals its shares once"):
        done.restart().people[0].reveal([0, 1, 2])
