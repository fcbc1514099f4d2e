"""The command that scores the network of a run: evaluate."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.app import RunFolder, command
from fedmcc.cli.run import method_name

if TYPE_CHECKING:
    from fedmcc.runs.directory import Run


@command
def evaluate(
    run: RunFolder,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="One or more of clustering, kmeans, federated-kmeans, knn, linear, semi, with commas."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Repetitions of random protocols.")] = 1,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The network to score [the run's final network].")
    ] = None,
) -> None:
    """Score the final network of a run on its images.

    Example: fedmcc evaluate runs/PICTURES-001 --protocol knn,linear
    """
    from fedmcc.errors import InputError
    from fedmcc.runs import build, directory
    from fedmcc.terminal import output

    opened = directory.load_run(run)
    if protocol is not None:
        _measure(opened, [name.strip() for name in protocol.split(",")], seeds, checkpoint)
        return
    if seeds != 1:
        raise InputError("--seeds applies to random protocols only: choose one with --protocol.")
    trained = build.reopen(opened, checkpoint)
    online = trained.net.online
    scores = trained.scorer.final(online, trained.scorer.extract(online))
    output.show_scores(scores, method_name(trained.config))


def _measure(run: "Run", names: Sequence[str], seeds: int, checkpoint: Path | None) -> None:
    """Evaluate with protocols; results of the final network are recorded in the run one by one."""
    from fedmcc.runs import protocols
    from fedmcc.terminal import output

    run.read_json(protocols.FILE)  # raises InputError for a damaged file before the work starts
    results = {}
    for name, scores in protocols.evaluate_each(run, names, seeds, checkpoint):
        results[name] = scores
        if checkpoint is None:
            protocols.record(run, {name: scores})
    output.show_evaluation(results)
    if checkpoint is None:
        output.say(f"Recorded in {run.path / protocols.FILE}.")
