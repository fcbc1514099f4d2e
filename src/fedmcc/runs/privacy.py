"""The secret of a run, from which its noise is drawn, and the privacy loss of its rounds."""

from collections import Counter

from fedmcc.errors import InputError
from fedmcc.federation.privacy import epsilon, epsilon_secret_draw, releases
from fedmcc.numerics.state_dicts import select
from fedmcc.runs.build import Experiment
from fedmcc.runs.directory import Row, Run
from fedmcc.storage.atomic_files import write_atomically


def noise_secret(experiment: Experiment, run: Run, rows: int) -> bytes:
    """The secret for noise and participants, the same after a resume; only the server may read it."""
    privacy, seed = experiment.config.privacy, experiment.config.general.seed
    if not privacy.noise or privacy.reproducible:
        return privacy.new_secret(seed)
    if run.secret_file.exists():
        return run.secret_file.read_bytes()
    if rows:
        raise InputError(
            f"{run.secret_file} is missing: restore it from a copy, the noise is derived from it."
        )
    write_atomically(run.secret_file, privacy.new_secret(seed), mode=0o600)
    return run.secret_file.read_bytes()


def privacy_loss(experiment: Experiment, run: Run, row: Row) -> Row:
    """The privacy loss of all rounds so far, `row` included; empty without noise.

    Where clients drop out or are refused, taking part depends on who is drawn: there is no bound then for
    observers who do not know the participants.
    """
    config, clients = experiment.config, len(experiment.clients)
    if not config.privacy.noise:
        return {}
    rows, drawn = [*run.rows(), row], config.federation.size(clients)
    weights = experiment.net.state_dict()
    published = {s.name: releases(s, select(weights, s.shared)) or 0 for s in experiment.stages}
    drawn_once = {s.name for s in experiment.stages if s.trained and published[s.name] == 1}
    of_client: Counter[int] = Counter()
    for each in rows:
        of_client.update(dict.fromkeys(each["participants"], published[each["stage"]]))
    loss: Row = {"epsilon": epsilon(config.privacy, max(of_client.values())), "delta": config.privacy.delta}
    if (
        drawn == clients
        or experiment.engine.newcomers()
        or not config.privacy.draws_secretly
        or any(each["stage"] not in drawn_once for each in rows)
        or any(r["dropped"] or r["refused"] for r in rows)
    ):
        return loss
    return loss | {"epsilon_secret_draw": epsilon_secret_draw(config.privacy, len(rows), drawn, clients)}
