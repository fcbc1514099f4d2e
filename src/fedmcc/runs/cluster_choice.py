"""The scores behind a chosen number of clusters or a chosen clustering, in files of the run."""

from typing import Any

from fedmcc.methods.best_clustering import BEST, MODULARITY, NAMES
from fedmcc.methods.federated_spectral import CURVE
from fedmcc.numerics import cluster_number
from fedmcc.numerics.state_dicts import State
from fedmcc.runs.directory import Run

FILE = "cluster-number.json"
CLUSTERING_FILE = "clustering-choice.json"
RUNNERS_UP = 2


def record_choice(run: Run, extras: State) -> None:
    """Write the scores of each number of clusters, or clustering, if the last stage chose among them."""
    if CURVE in extras:
        run.write_json(FILE, describe(extras))
    if MODULARITY in extras:
        found = dict(zip(NAMES, extras[MODULARITY].tolist(), strict=True))
        run.write_json(CLUSTERING_FILE, {"chosen": NAMES[int(extras[BEST])], "modularity": found})


def sentences(run: Run) -> list[str]:
    """What was chosen and why, in words."""
    return [text for text in (_clustering_sentence(run), _number_sentence(run)) if text]


def _clustering_sentence(run: Run) -> str | None:
    """The chosen clustering; None if it was given."""
    content = run.read_json(CLUSTERING_FILE)
    if not content:
        return None
    found = ", ".join(f"{name} {value:.3f}" for name, value in content["modularity"].items())
    return f"Chosen clustering: {content['chosen']}. How well neighbours stay together (modularity): {found}."


def _number_sentence(run: Run) -> str | None:
    """The chosen number of clusters and the next best ones; None if it was given."""
    content = run.read_json(FILE)
    if not content:
        return None
    scores = {point["clusters"]: point["score"] for point in content["curve"]}
    named = [f"{number} ({scores[number]:.2f})" for number in (content["chosen"], *content["runners_up"])]
    others = f"; next: {' and '.join(named[1:])}" if named[1:] else ""
    return f"Chosen number of clusters, with its score of at most 1: {named[0]}{others}."


def describe(extras: State) -> dict[str, Any]:
    """The chosen number of clusters, the next best ones, and the scores of all that were considered."""
    found = extras[CURVE].double().numpy()
    ranked = cluster_number.ranked(found)
    points = [dict(zip(cluster_number.COLUMNS, row, strict=True)) for row in found.tolist()]
    curve = [point | {"clusters": int(point["clusters"])} for point in points]
    return {"chosen": ranked[0], "runners_up": ranked[1 : 1 + RUNNERS_UP], "curve": curve}
