"""Cached features: their values, pairs and memory limit; runs are bit-identical without the cache."""

import pickle
from dataclasses import replace
from itertools import islice

import pytest
import torch

from fedmcc.config import parse
from fedmcc.data import load_dataset
from fedmcc.errors import InputError
from fedmcc.methods.cluster_contrast import ClusterContrast
from fedmcc.numerics.randomness import generator
from fedmcc.runs import experiment
from fedmcc.runs.build import assemble, build_network
from fedmcc.runs.directory import load_run
from fedmcc.training.feature_cache import FeatureCache, FeatureSource, feature_pairs
from fedmcc.training.loop import Training

pytestmark = pytest.mark.slow  # whole runs or processes

VIEWS, SIZE = 3, 2**30


def _config(clients=3, training=(), engine=(), **clustering):
    return parse(
        {
            "clusters": 3,
            "seed": 3,
            "threads": 1,
            "device": "cpu",
            "encoder": {"width": 4},
            "method": {"name": "fedmcc", "hidden": 8, "rounds": 1},
            "clustering": {"name": "mcc", "hidden": 8, "rounds": 3, "epochs": 1, **clustering},
            "partition": {"clients": clients},
            "training": {"batch_size": 8, **dict(training)},
            "engine": dict(engine),
            "evaluation": {"every": 100},
        }
    )


def _source(client=0, images=20):
    config = _config()
    pixels = load_dataset("digits", limit=images).images
    return FeatureSource(pixels, config.views, VIEWS, (config.general.seed, client, "clustering"))


def _encoder(seed=3):
    config = replace(_config(), general=replace(_config().general, clusters=3, seed=seed))
    config = replace(config, views=replace(config.views, size=8))
    return build_network(config, 1).online.encoder.eval()


def _outcome(run):
    return [row["loss"] for row in run.rows()], run.model_file.read_bytes(), run.scores_file.read_text()


def _run(path, config):
    return _outcome(experiment.run(replace(config, data=replace(config.data, limit=60)), path))


def test_features_are_those_of_views_drawn_from_seed_client_and_stage():
    source, encoder = _source(), _encoder()
    draw = generator(3, "cache", 0, "clustering")
    with torch.no_grad():
        views = [source.views(torch.from_numpy(source.images), draw) for _ in range(VIEWS)]
        expected = torch.stack([encoder(view) for view in views], dim=1)
    torch.testing.assert_close(source.features(encoder, batch=7), expected, rtol=1e-4, atol=1e-5)


def test_an_epoch_pairs_two_different_views_of_every_image_once():
    numbers = torch.arange(10 * 4.0).reshape(10, 4, 1)  # image i, view v: 4 i + v
    images = []
    for a, b in feature_pairs(numbers, 3, torch.Generator().manual_seed(0)):
        assert torch.equal(a // 4, b // 4)
        assert (a != b).all()
        images += (a // 4).flatten().tolist()
    assert len(set(images)) == len(images) == 9


def test_all_ordered_pairs_of_views_are_drawn_about_equally_often():
    draw, numbers = torch.Generator().manual_seed(0), torch.arange(4.0).expand(1200, 4).unsqueeze(2)
    ((a, b),) = feature_pairs(numbers, 1200, draw)
    counts = torch.bincount((4 * a + b).flatten().long(), minlength=16).reshape(4, 4)
    assert counts.diagonal().sum() == 0
    others = counts[~torch.eye(4, dtype=torch.bool)]
    assert (others - 100).abs().max() < 40  # four standard deviations


def test_cached_features_are_not_computed_again():
    cache, source, encoder = FeatureCache(), _source(), _encoder()
    first = cache.get(source, encoder, 8, SIZE)
    assert cache.get(replace(source), encoder, 8, SIZE) is first
    assert torch.equal(FeatureCache().get(source, encoder, 8, SIZE), first)


@pytest.mark.parametrize("change", ["encoder", "images", "client"])
def test_features_of_another_encoder_image_set_or_client_are_not_used(change):
    cache, source, encoder = FeatureCache(), _source(), _encoder()
    first = cache.get(source, encoder, 8, SIZE)
    if change == "encoder":
        encoder = _encoder(seed=4)
    elif change == "images":
        source = replace(source, images=source.images[::-1])
    else:
        source = replace(source, key=(3, 1, "clustering"))
    second = cache.get(source, encoder, 8, SIZE)
    assert not torch.equal(second, first)
    assert torch.equal(second, source.features(encoder, 8))


def test_the_cache_stays_within_its_limit_and_keeps_as_many_clients_as_fit():
    cache, encoder, sources = FeatureCache(), _encoder(), [_source(client) for client in range(5)]
    limit, rounds = 3 * sources[0].bytes(encoder), []
    for _ in range(2):
        rounds.append([cache.get(source, encoder, 8, limit) for source in sources])
        assert cache.bytes == limit
    again = [before is after for before, after in zip(*rounds, strict=True)]
    assert again == [True, True, False, False, True]


def test_processes_share_the_limit_and_a_pickled_copy_is_empty():
    encoder, cache = _encoder(), FeatureCache(processes=2)
    limit = 4 * _source().bytes(encoder)
    for client in range(4):
        cache.get(_source(client), encoder, 8, limit)
    assert cache.bytes == limit // 2
    copy = pickle.loads(pickle.dumps(cache))  # noqa: S301
    assert (copy.bytes, copy.processes) == (0, 2)


def test_clients_of_a_run_share_one_cache_which_the_engine_clears():
    assembled = assemble(_config(), load_dataset("digits", limit=60))
    caches = {id(client.cache) for client in assembled.engine.clients.values()}
    assert len(caches) == 1
    cache = assembled.engine.clients[0].cache
    with assembled.engine:
        cache.get(_source(), _encoder(), 8, SIZE)
    assert cache.bytes == 0


def test_a_run_is_bit_identical_with_features_cached_evicted_or_in_other_processes(tmp_path):
    kept = _run(tmp_path / "kept", _config())
    needed = str(20 * 8 * 32 * 4)  # one client: 20 images, 8 views, 32 features, 4 bytes
    assert _run(tmp_path / "lost", _config(training={"cache_limit": needed})) == kept
    assert _run(tmp_path / "pool", _config(engine={"name": "pool", "workers": 2})) == kept


def test_a_run_resumed_in_its_second_stage_is_bit_identical(tmp_path):
    straight = _run(tmp_path / "straight", _config())
    config = replace(_config(), data=replace(_config().data, limit=60))
    prepared = experiment.prepare(config)
    run = experiment.start_run(prepared, tmp_path / "broken")
    steps = experiment.steps(prepared, run)
    scored = (event for event in steps if isinstance(event, experiment.Scored))
    assert [event.row["stage"] for event in islice(scored, 3)] == [
        "representation",
        "clustering",
        "clustering",
    ]
    steps.close()
    for _ in experiment.steps(experiment.prepare(config), load_run(run.path)):
        pass
    assert _outcome(run) == straight


def test_a_client_whose_features_do_not_fit_draws_new_views(tmp_path):
    fresh = _run(tmp_path / "fresh", _config(views_per_image=0))
    assert _run(tmp_path / "large", _config(training={"cache_limit": "1KB"})) == fresh
    assert _run(tmp_path / "kept", _config()) != fresh


def test_chunks_of_features_have_the_losses_of_whole_batches(tmp_path):
    """With group normalisation, with which chunks are also exact in the first stage."""
    config = _config()
    config = replace(config, encoder=replace(config.encoder, norm="group"))
    whole, parts = (
        _run(tmp_path / str(chunk), replace(config, training=replace(config.training, chunk=chunk)))[0]
        for chunk in (None, 3)
    )
    assert parts == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("views", [-1, 1])
def test_a_number_of_views_without_a_pair_is_refused(views):
    with pytest.raises(InputError, match=rf"clustering\.views_per_image is {views}: give 2 or more"):
        ClusterContrast(views_per_image=views)


def test_an_invalid_limit_is_refused():
    with pytest.raises(InputError, match=r"training\.cache_limit is 'much'"):
        Training(cache_limit="much")


def test_features_take_a_quarter_of_a_memory_limit_at_most():
    images = load_dataset("digits", limit=60)
    training = {"chunk": "auto", "memory_limit": "4GB", "cache_limit": "3GB"}
    config = assemble(_config(training=training), images).config
    assert config.training.cache_bytes == 2**30
    assert config.training.chunk == 8
