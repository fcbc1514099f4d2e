"""Clipping, noise and secret draws, in the server's step and in whole runs."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from fedmcc import config
from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import accuracy
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.privacy import (
    NoiseStream,
    Privacy,
    PrivateAggregator,
    clipped,
    epsilon,
    epsilon_secret_draw,
)
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.extras import Additive
from fedmcc.methods.other_clients import mean_over_images, part_of_others
from fedmcc.runs import experiment
from fedmcc.storage.safetensor_files import load_state

pytestmark = pytest.mark.slow  # whole runs or processes

STAGE = Stage(name="head", rounds=1, epochs=1, trained=("a",), shared=("a",))
SENT = {"a.w": torch.zeros(3), "a.v": torch.ones(2, 2), "a.steps": torch.tensor(4)}
TINY = {
    "seed": 3,
    "threads": 1,
    "data": {"name": "digits", "limit": 120},
    "encoder": {"name": "convnet", "width": 4, "norm": "group"},
    "method": {"name": "fedmcc", "rounds": 2, "epochs": 1},
    "clustering": {"name": "mcc", "rounds": 1, "epochs": 1},
    "partition": {"clients": 3},
    "training": {"batch_size": 16},
}


def _update(client, change, samples=10):
    weights = {"a.w": SENT["a.w"] + change, "a.v": SENT["a.v"].clone(), "a.steps": torch.tensor(9)}
    return Update(client, "head", 1, samples, 0.5, weights)


def _run(tmp_path, name, **privacy):
    table = TINY | {"privacy": privacy, "engine": {"name": "pool" if name == "pool" else "embedded"}}
    return experiment.run(config.parse(table), tmp_path / name)


def test_a_large_change_is_scaled_down_in_its_direction():
    change = torch.tensor([3.0, 4.0, 0.0])
    bounded = clipped(_update(0, change).weights, SENT, 1.0)
    assert torch.allclose(bounded["a.w"], change / 5)
    assert torch.equal(bounded["a.v"], SENT["a.v"])
    assert bounded["a.steps"] == 9


@pytest.mark.parametrize("limit", [5.0, 6.0, None])
def test_a_small_change_stays_bit_identical(limit):
    weights = _update(0, torch.tensor([3.0, 4.0, 0.0])).weights
    assert all(torch.equal(value, weights[name]) for name, value in clipped(weights, SENT, limit).items())


def test_the_server_clips_every_update_and_weights_clients_equally():
    updates = [_update(0, torch.tensor([1e6, 0.0, 0.0]), samples=10**6), _update(1, torch.zeros(3))]
    combined = PrivateAggregator(Privacy(clip=1.0)).combine(STAGE, updates, SENT, 1)
    assert torch.allclose(combined.weights["a.w"], torch.tensor([0.5, 0.0, 0.0]))


def test_without_options_the_servers_step_is_the_stages_own():
    updates = [_update(0, torch.ones(3), samples=30), _update(1, torch.zeros(3))]
    combined = PrivateAggregator().combine(STAGE, updates, SENT, 1)
    assert torch.allclose(combined.weights["a.w"], torch.full((3,), 0.75))


def test_noise_on_the_average_has_the_configured_deviation():
    sent = {"a.w": torch.zeros(40_000)}
    updates = [Update(client, "head", 1, 5, None, dict(sent)) for client in range(4)]
    noise = (
        PrivateAggregator(Privacy(clip=2.0, noise=3.0), b"secret")
        .combine(STAGE, updates, sent, 1)
        .weights["a.w"]
    )
    assert kstest(noise.numpy() / (3.0 * 2.0 / 4), "norm").pvalue > 1e-3


def test_noise_depends_on_the_secret_and_the_place():
    drawn = [
        NoiseStream(secret, place).normal(9)
        for secret, place in [(b"a", "x/1"), (b"a", "x/2"), (b"b", "x/1")]
    ]
    assert np.array_equal(drawn[0], NoiseStream(b"a", "x/1").normal(9))
    assert not set(drawn[0]) & set(drawn[1]) | set(drawn[0]) & set(drawn[2])


def _drawn(secret, **privacy):
    policy = Policy(Federation(count=3), 5, PrivateAggregator(Privacy(**privacy), secret))
    return [policy.draw(range(30), "head", number, 1) for number in range(40)]


def test_with_noise_participants_are_drawn_from_the_secret_and_not_from_the_seed():
    noisy = {"clip": 1.0, "noise": 1.0}
    assert _drawn(b"a", **noisy) == _drawn(b"a", **noisy)
    assert _drawn(b"a", **noisy) != _drawn(b"b", **noisy)
    assert _drawn(b"a") == _drawn(b"b") == _drawn(b"b", **noisy, reproducible=True)
    counts = np.bincount(np.ravel(_drawn(b"a", **noisy)), minlength=30)
    assert chisquare(counts).pvalue > 1e-3
    assert all(len(set(drawn)) == 3 for drawn in _drawn(b"a", **noisy))


def _rows(tmp_path, name, **privacy):
    table = TINY | {"partition": {"clients": 6}, "federation": {"count": 2}}
    table |= {"privacy": {"clip": 1.0, "noise": 4.0} | privacy, "training": {"batch_size": 8}}
    return experiment.run(config.parse(table), tmp_path / name).rows()


def test_rows_count_the_rounds_of_the_client_that_took_part_most_often(tmp_path):
    privacy = Privacy(clip=1.0, noise=4.0)
    secret, known = _rows(tmp_path, "secret"), _rows(tmp_path, "known", reproducible=True)
    for rows in (secret, known):
        for number, row in enumerate(rows, 1):
            taken = [client for earlier in rows[:number] for client in earlier["participants"]]
            assert row["epsilon"] == epsilon(privacy, max(taken.count(client) for client in taken))
    assert [row["epsilon_secret_draw"] for row in secret] == [
        epsilon_secret_draw(privacy, number, 2, 6) for number in (1, 2, 3)
    ]
    assert not any("epsilon_secret_draw" in row for row in known)  # every site can compute who took part


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": -1.0}, r"privacy.clip is -1.0: give"),
        ({"noise": 1.0}, r"set privacy.clip as well"),
        ({"clip": 1.0, "noise": math.nan}, r"privacy.noise is nan"),
        ({"delta": 1.0}, r"privacy.delta is 1.0"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Privacy(**options)


@pytest.mark.parametrize(("method", "clustering"), [("fedmcc", "informative"), ("fedca", "mcc")])
def test_noise_is_refused_where_clients_send_more_than_weights(method, clustering, tmp_path):
    pair = {"method": {"name": method}, "clustering": {"name": clustering}}
    table = TINY | pair | {"privacy": {"clip": 1.0, "noise": 1.0}}
    with pytest.raises(InputError, match="clients send more"):
        experiment.run(config.parse(table), tmp_path / "run")


@pytest.mark.parametrize("section", ["encoder", "method"])
def test_noise_is_refused_with_batch_normalisation(section, tmp_path):
    table = TINY | {"method": {"name": "fedsimclr", "norm": "group", "rounds": 1}}
    table |= {"privacy": {"clip": 1.0, "noise": 1.0}, section: (table[section] | {"norm": "batch"})}
    with pytest.raises(InputError, match=f'{section}.norm to "group"'):
        experiment.run(config.parse(table), tmp_path / "run")


def _default(tmp_path, name, clustering, **privacy):
    """A run of the default whose statistics are all sums."""
    clusters = {"name": "informative", "smallest": 1, "prototype_rounds": 2} | clustering
    method = {"name": "fedmcc", "rounds": 2, "hidden": 16}
    table = TINY | {"method": method, "clustering": clusters, "privacy": privacy}
    return experiment.run(config.parse(table), tmp_path / name)


def test_noise_covers_the_default_if_all_its_statistics_are_sums(tmp_path):
    done = _default(tmp_path, "run", {}, clip=1.0, noise=4.0)
    stages = [row["stage"] for row in done.rows()]
    statistics = ["whitening", "prototypes", "prototypes", "clusters"]
    assert stages == ["representation", "representation", *statistics]
    # whitening publishes two moments, and clusters affinities and a histogram
    published = np.cumsum([1, 1, 2, 1, 1, 2])
    privacy = Privacy(clip=1.0, noise=4.0)
    assert [row["epsilon"] for row in done.rows()] == [epsilon(privacy, int(n)) for n in published]


def test_with_almost_no_noise_the_default_ends_as_with_clipping_alone(tmp_path):
    clusters = []
    for name, noise in (("clipped", 0.0), ("noisy", 1e-6)):
        done = _default(tmp_path, name, {"prototypes": 2.0}, clip=1.0, noise=noise)
        lines = (done.path / "assignments.csv").read_text().splitlines()[1:]
        clusters.append(np.array([int(line.split(",")[1]) for line in lines]))
    assert accuracy(*clusters) > 0.6  # axes may change their sign; noise of 4 gives .17


@dataclass(frozen=True, kw_only=True)
class Moments(Stage):
    """A stage whose clients also send a second moment of unit vectors."""

    name: str = "moments"
    rounds: int = 2
    epochs: int = 1
    trained: tuple[str, ...] = ("online.encoder",)
    shared: tuple[str, ...] = ("online.encoder",)
    size: int

    def additive(self, weights):
        return {"moment": Additive(torch.float32, (self.size, self.size), symmetric=True, norm=1.0)}

    def combine(self, updates, model):
        extras = mean_over_images(self, updates, "moment")
        return Aggregate(super().combine(updates, model).weights, extras)


def test_noise_on_a_statistic_is_scaled_by_its_largest_norm():
    stage = Moments(size=40)
    moment = torch.eye(40)  # far from negative, so that the noise is not cut off
    weights = {"online.encoder.w": torch.zeros(3)}
    updates = [
        Update(client, stage.name, 1, 10 * client + 10, 0.5, weights, {"moment": moment})
        for client in range(5)
    ]
    privacy = Privacy(clip=1.0, noise=0.1)
    combined = PrivateAggregator(privacy, b"secret").combine(stage, updates, weights, 1)
    noise = (combined.extras["moment"] - moment)[torch.triu_indices(40, 40, offset=1).unbind()]
    # the mean of two entries of the noise, above and below the diagonal
    assert kstest(noise.numpy() / (0.1 / 5 / math.sqrt(2)), "norm").pvalue > 1e-3
    assert int(combined.extras["samples"]) == 5  # clients of equal weight


def test_clients_of_different_sizes_subtract_their_own_part_of_a_clipped_mean():
    stage = Moments(size=2)
    weights = {"online.encoder.w": torch.zeros(3)}
    moments = [torch.diag(torch.tensor(pair)) for pair in ([1.0, 0.0], [0.0, 1.0])]
    updates = [
        Update(client, stage.name, 1, samples, 0.5, weights, {"moment": moments[client]})
        for client, samples in enumerate((900, 100))
    ]
    combined = PrivateAggregator(Privacy(clip=1.0)).combine(stage, updates, weights, 1)
    for client, update in enumerate(updates):
        task = Task(client, stage.name, 2, weights, combined.extras)
        memory = {"samples": torch.tensor(update.samples), "round": torch.tensor(1)}
        others, share = part_of_others(moments[client], "moment", task, memory)
        torch.testing.assert_close(others, moments[1 - client].double() / 2)
        assert float(share) == 0.5


def test_numbers_of_images_do_not_reach_other_clients_if_updates_are_clipped():
    stage = Moments(size=2)
    weights, moment = {"online.encoder.w": torch.zeros(3)}, {"moment": torch.eye(2)}

    def published(images):
        updates = [Update(c, stage.name, 1, n, 0.5, weights, moment) for c, n in enumerate(images)]
        return PrivateAggregator(Privacy(clip=1.0)).combine(stage, updates, weights, 1).extras

    few, many = published((30, 30, 20)), published((30, 30, 2_000))
    assert {name: value.tolist() for name, value in few.items()} == {
        name: value.tolist() for name, value in many.items()
    }


def test_integers_do_not_change_with_noise_because_they_reveal_numbers_of_steps():
    updates = [_update(client, torch.zeros(3)) for client in range(2)]
    combined = PrivateAggregator(Privacy(clip=1.0, noise=1.0), b"secret").combine(STAGE, updates, SENT, 1)
    assert set(combined.weights) == {"a.w", "a.v"}


def test_a_run_logs_epsilon_in_every_round_and_deletes_its_secret(tmp_path):
    done = _run(tmp_path, "run", clip=1.0, noise=4.0)
    privacy = Privacy(clip=1.0, noise=4.0)
    assert [row["epsilon"] for row in done.rows()] == [epsilon(privacy, n) for n in (1, 2, 3)]
    assert not done.secret_file.exists()


def test_all_engines_add_the_same_noise_and_two_runs_different_noise(tmp_path):
    same = [_run(tmp_path, name, clip=0.5, noise=1.0, reproducible=True) for name in ("pool", "embedded")]
    other = _run(tmp_path, "other", clip=0.5, noise=1.0)
    pool, embedded, secret = (load_state(run.model_file) for run in (*same, other))
    assert all(torch.equal(value, embedded[name]) for name, value in pool.items())
    assert not any(torch.equal(value, secret[name]) for name, value in pool.items() if value.numel() > 1)


def test_an_update_is_clipped_before_it_leaves(tmp_path):
    from fedmcc.federation.rounds import Progress, rounds
    from fedmcc.numerics.state_dicts import detached
    from fedmcc.runs.build import prepare

    prepared = prepare(config.parse(TINY | {"privacy": {"clip": 0.01}}))
    progress, stage = Progress(detached(prepared.net.state_dict())), prepared.stages[0]
    first = next(iter(e for e in rounds(stage, progress, prepared.engine, [0]) if hasattr(e, "updates")))
    squares = [(v - progress.model[n]).double().square().sum() for n, v in first.updates[0].weights.items()]
    assert math.sqrt(sum(squares)) == pytest.approx(0.01, rel=1e-4)


def test_a_resumed_run_has_the_same_noise(tmp_path):
    from fedmcc.runs.build import prepare

    prepared = prepare(config.parse(TINY | {"privacy": {"clip": 1.0, "noise": 1.0}}))
    whole, interrupted = (
        experiment.start_run(prepared, tmp_path / name) for name in ("whole", "interrupted")
    )
    for run in (whole, interrupted):
        run.secret_file.write_bytes(b"s" * 32)
    for event in experiment.steps(prepare(prepared.config), interrupted):
        if isinstance(event, experiment.Scored):
            break
    for run in (interrupted, whole):
        list(experiment.steps(prepare(prepared.config), run))
    assert interrupted.model_file.read_bytes() == whole.model_file.read_bytes()


def test_a_run_without_its_secret_is_not_resumed(tmp_path):
    from fedmcc.runs.build import prepare

    prepared = prepare(config.parse(TINY | {"privacy": {"clip": 1.0, "noise": 1.0}}))
    run = experiment.start_run(prepared, tmp_path / "run")
    events = experiment.steps(prepared, run)
    next(event for event in events if isinstance(event, experiment.Scored))
    events.close()
    assert run.secret_file.stat().st_mode & 0o777 == 0o600
    run.secret_file.unlink()
    with pytest.raises(InputError, match=r"noise.secret is missing: restore it"):
        list(experiment.steps(prepare(replace(prepared.config)), run))
