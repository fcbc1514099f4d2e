"""Secure aggregation in simulations: the result is the plain average within the quantisation step."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedmcc import config
from fedmcc.errors import InputError
from fedmcc.federation.engines.base import Engine
from fedmcc.federation.engines.secure import SecureEngine
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.privacy import Privacy, PrivateAggregator, clipped
from fedmcc.federation.rounds import Progress, Round, RoundFailedError, rounds
from fedmcc.federation.secure_aggregation.quantise import FINE_STEP, STEP
from fedmcc.federation.secure_aggregation.vectors import Layout, Weighting, layout_of
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.extras import Additive, add_up
from fedmcc.numerics.state_dicts import weighted_average
from fedmcc.runs.build import prepare
from fedmcc.runs.experiment import run as run_experiment
from fedmcc.runs.resolve import check
from fedmcc.storage.safetensor_files import load_state

STAGE = Stage(name="head", rounds=1, epochs=1, trained=("head",), shared=("head",), frozen=("encoder",))
DRAW = torch.Generator().manual_seed(0)
MODEL = {
    "head.weight": torch.randn(3, 5, generator=DRAW),
    "head.steps": torch.tensor(4),
    "head.bias": torch.randn(5, generator=DRAW),
    "encoder.weight": torch.randn(2, generator=DRAW),
}
IMAGES = [10, 30, 20, 40, 15]


def trained(client):
    draw = torch.Generator().manual_seed(client + 1)
    weights = {
        name: MODEL[name] + 0.1 * torch.randn(MODEL[name].shape, generator=draw)
        for name in ("head.weight", "head.bias")
    }
    return {**weights, "head.steps": torch.tensor(4 + client)}


class Known(Engine):
    """An engine with known updates; the clients in `away` do not answer."""

    def __init__(self, away=(), change=lambda client, weights: weights):
        self.away, self.change, self.extras = away, change, lambda client: {}

    @property
    def members(self):
        return list(range(5))

    def samples(self, client):
        return IMAGES[client]

    def run(self, stage, tasks):
        for task in tasks:
            if task.client not in self.away:
                weights = self.change(task.client, trained(task.client))
                extras = self.extras(task.client)
                yield Update(task.client, stage.name, task.round, IMAGES[task.client], 0.5, weights, extras)

    def commit(self, accepted):
        self.accepted = list(accepted)


def one_round(engine, privacy=None, stage=STAGE, **options):
    policy = Policy(
        Federation(secure_aggregation=True, **options), 0, PrivateAggregator(privacy or Privacy())
    )
    (done,) = [
        each
        for each in rounds(stage, Progress(MODEL), engine, engine.members, policy)
        if isinstance(each, Round)
    ]
    return done


@pytest.mark.parametrize("away", [(), (1,), (4,)])
def test_the_model_is_the_plain_average_within_the_quantisation_step(away):
    inner = Known(away)
    done = one_round(SecureEngine(inner, clip=None))
    present = [client for client in range(5) if client not in away]
    counts = [float(IMAGES[client]) for client in present]
    expected = weighted_average([trained(client) for client in present], counts)
    bound = len(present) * STEP / 2 * sum(IMAGES) / sum(counts) + 1e-6  # and the rounding of float32
    for name in ("head.weight", "head.bias"):
        assert (done.progress.model[name] - expected[name]).abs().max() <= bound
    assert done.progress.model["head.steps"] == expected["head.steps"]  # integers are not masked
    assert inner.accepted == present
    assert done.dropped == away


def test_the_server_gets_no_single_update():
    done = one_round(SecureEngine(Known(), clip=None))
    first, *others = [update.weights["head.weight"] for update in done.updates]
    assert all(torch.equal(first, other) for other in others)
    assert not any(torch.allclose(first, trained(client)["head.weight"], atol=1e-3) for client in range(5))


def test_clipped_updates_count_equally():
    done = one_round(SecureEngine(Known(), clip=100.0), Privacy(clip=100.0))
    expected = weighted_average([trained(client) for client in range(5)], [1.0] * 5)
    assert (done.progress.model["head.bias"] - expected["head.bias"]).abs().max() <= 5 * STEP / 2 + 1e-6


def test_keys_and_shares_count_as_traffic():
    done = one_round(SecureEngine(Known(), clip=None))
    plain = 4 * 20 + 8
    # Two keys; for each of five holders two encrypted shares with nonce and tag, and two hashes; one hash;
    # five shares revealed.
    assert {traffic.up for traffic in done.traffic.values()} == {
        plain + 64 + 5 * (132 + 28 + 64) + 32 + 5 * 66
    }


def test_an_update_that_cannot_be_sent_drops_out(caplog):
    def huge(client, weights):
        return {**weights, "head.bias": torch.full((5,), 1e9)} if client == 2 else weights

    done = one_round(SecureEngine(Known(change=huge), clip=None))
    assert [update.client for update in done.updates] == [0, 1, 3, 4]
    assert "Client 2 drops out of head, round 1: A number of the update is beyond 500" in caplog.text


def test_a_round_with_too_few_clients_fails_with_the_reason(caplog):
    with pytest.raises(RoundFailedError, match="0 updates were accepted"):
        one_round(SecureEngine(Known(away=(0, 1, 2)), clip=None))
    assert "2 vectors were received, but 4 are needed" in caplog.text


TABLE = {
    "clusters": 3,
    "device": "cpu",
    "threads": 1,
    "data": {"name": "digits", "limit": 60},
    "encoder": {"width": 4},
    "method": {
        "name": "fedmcc",
        "rounds": 1,
        "epochs": 1,
        "hidden": 8,
    },
    "clustering": {"name": "mcc", "rounds": 1, "epochs": 1, "hidden": 8},
    "partition": {"clients": 3, "uneven": 0.5},
    "training": {"batch_size": 8},
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"federation": {"aggregation": "guarded"}}, "'guarded' compares: leave one of them out"),
        ({"federation": {"half": True}}, "federation.half does not work"),
        ({"partition": {"clients": 2}}, "minimum is 3 by default with federation.secure_aggregation, but 2"),
        ({"federation": {"only": 1}}, "minimum is 3 by default with federation.secure_aggregation, but 1"),
        ({"federation": {"minimum": 1}}, "the sum of one update hides nothing"),
        ({"federation": {"norm_limit": math.inf}}, "set federation.norm_limit to a number such as 10"),
    ],
)
def test_what_needs_single_updates_is_refused(changes, reason):
    table = {**TABLE, **changes}
    table["federation"] = {"secure_aggregation": True, **changes.get("federation", {})}
    with pytest.raises(InputError, match=reason):
        check(config.parse(table))


def test_statistics_that_are_not_sums_are_refused_unless_the_recipe_sends_them_openly():
    table = {**TABLE, "clustering": {"name": "informative"}, "federation": {"secure_aggregation": True}}
    with pytest.raises(InputError, match="in the stage prototypes clients send other statistics"):
        prepare(config.parse(table))
    table["federation"]["open_statistics"] = True
    assert isinstance(prepare(config.parse(table)).engine, SecureEngine)


@dataclass(frozen=True, kw_only=True)
class Statistical(Stage):
    """A stage whose clients also send a sum and a mean over their images."""

    def extras(self, net, batches):
        raise NotImplementedError

    def additive(self, weights):
        return {
            "sum": Additive(torch.float64, (2, 3), is_sum=True),
            "mean": Additive(torch.float32, (4,)),
        }

    def extras_error(self, update):
        return ""

    def combine(self, updates, model):
        counts = self.counts(updates)
        mean = sum(count * update.extras["mean"] for count, update in zip(counts, updates, strict=True))
        extras = {"sum": add_up(updates, "sum", counts), "mean": mean / sum(counts)}
        return Aggregate(super().combine(updates, model).weights, extras)


def statistics(client):
    draw = torch.Generator().manual_seed(100 + client)
    total = IMAGES[client] * torch.randn(2, 3, generator=draw, dtype=torch.float64)
    return {"sum": total, "mean": torch.randn(4, generator=draw)}


@pytest.mark.parametrize("away", [(), (3,)])
def test_sums_and_means_of_statistics_are_those_of_the_clients_that_answered(away):
    stage = Statistical(name="head", rounds=1, epochs=1, trained=("head",), shared=("head",))
    inner = Known(away)
    inner.extras = statistics
    done = one_round(SecureEngine(inner, clip=None), stage=stage)
    present = [client for client in range(5) if client not in away]
    total = sum(statistics(client)["sum"] for client in present)
    images = sum(IMAGES[client] for client in present)
    mean = sum(IMAGES[client] * statistics(client)["mean"] for client in present) / images
    assert (done.progress.extras["sum"] - total).abs().max() <= 5 * FINE_STEP * sum(IMAGES)
    assert (done.progress.extras["mean"] - mean).abs().max() <= 1e-6  # of float32
    first = done.updates[0]
    assert not torch.allclose(first.extras["mean"], statistics(first.client)["mean"], atol=1e-2)


@pytest.mark.slow
def test_a_run_with_statistics_equals_the_plain_average_within_the_step(tmp_path):
    """One round each, so that rounding cannot grow: the whitening is that of the plain run."""
    models = []
    clustering = {"name": "informative", "prototypes": 2.0}
    for secure in (False, True):
        options = {"aggregation": "mean", "secure_aggregation": secure, "open_statistics": secure}
        table = {**TABLE, "clustering": clustering, "federation": options}
        models.append(load_state(run_experiment(config.parse(table), tmp_path / str(secure)).model_file))
    plain, secured = models
    names = [name for name in plain if name.endswith("whitening.mean")]
    assert names
    assert all((plain[name] - secured[name]).abs().max() < 1e-4 for name in names)


@pytest.mark.slow
def test_a_run_equals_the_plain_average_within_the_step(tmp_path):
    models = []
    for secure in (False, True):
        options = {"aggregation": "mean", "secure_aggregation": secure}
        done = run_experiment(config.parse({**TABLE, "federation": options}), tmp_path / str(secure))
        models.append(load_state(done.model_file))
    plain, secured = models
    assert plain.keys() == secured.keys()
    encoder = [name for name in plain if "encoder" in name and plain[name].is_floating_point()]
    # One round trains the encoder, so that the step bounds its difference; the head sees other features.
    worst = max((plain[name] - secured[name]).abs().max().item() for name in encoder)
    assert 0 < worst <= 3 * STEP / 2 + 1e-6 + STEP


def poison(monkeypatch, round):
    """Client 2 sends random integers instead of its update in this round."""
    honest, draw = Layout.encode, np.random.default_rng(0)

    def encode(layout, update):
        vector = honest(layout, update)
        if (update.client, update.round) != (2, round):
            return vector
        return draw.integers(0, 2**32, len(vector), dtype=np.uint32)

    monkeypatch.setattr(Layout, "encode", encode)


def all_rounds(clip, count, engine=None):
    """The rounds of a stage that trains, and the model before each of them."""
    policy = Policy(Federation(secure_aggregation=True), 0, PrivateAggregator(Privacy(clip=clip)))
    engine = SecureEngine(engine or Known(change=unchanged), clip)
    done = rounds(replace(STAGE, rounds=count), Progress(MODEL), engine, engine.members, policy)
    return [each for each in done if isinstance(each, Round)]


def unchanged(client, weights):
    """An update that is within every clip."""
    return dict(MODEL)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_one_random_vector_costs_one_round_and_no_more(clip, monkeypatch, caplog):
    poison(monkeypatch, round=2)
    done = all_rounds(clip, 3)
    assert [[update.client for update in each.updates] for each in done] == [[*range(5)], [], [*range(5)]]
    first, second = (each.progress.model for each in done[:2])
    assert all(torch.equal(first[name], second[name]) for name in MODEL)
    assert "Round 2 of the stage head is skipped: Its weights moved by" in caplog.text
    assert done[1].skipped.endswith("the clients 0, 1, 2, 3, 4, which does not show whose update is wrong.")


def test_a_clip_bounds_every_coordinate_of_a_sum_whatever_a_client_sends():
    """A change is at most 512/500 of the clip times the number of clients: integers have no larger values."""
    layout = layout_of(STAGE, MODEL, Weighting(dict(enumerate(IMAGES)), clip=0.01))
    vector = np.random.default_rng(0).integers(0, 2**32, len(layout), dtype=np.uint32)
    weights = layout.decode(vector, range(5)).weights
    assert all((weights[name] - MODEL[name]).abs().max() <= 0.01 * 512 / 500 + 1e-6 for name in weights)


def test_a_round_that_only_gathers_statistics_is_not_skipped(monkeypatch):
    poison(monkeypatch, round=1)
    stage = replace(STAGE, trained=())
    with pytest.raises(RoundFailedError, match="failed 3 times"):
        one_round(SecureEngine(Known(change=unchanged), clip=None), stage=stage)


def test_clients_that_clip_are_never_accused_of_not_clipping():
    done = all_rounds(0.05, 3, Known(change=lambda client, weights: clipped(weights, MODEL, 0.05)))
    assert not any(each.skipped for each in done)


@pytest.mark.slow
def test_a_stage_of_which_all_rounds_were_skipped_ends_the_run_with_a_sentence(monkeypatch, tmp_path):
    draw = np.random.default_rng(0)
    monkeypatch.setattr(
        Layout, "encode", lambda layout, update: draw.integers(0, 2**32, len(layout), dtype=np.uint32)
    )
    table = {**TABLE, "federation": {"secure_aggregation": True}}
    with pytest.raises(RoundFailedError, match="All rounds of the stage representation were skipped"):
        run_experiment(config.parse(table), tmp_path / "run")
