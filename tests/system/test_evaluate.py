"""`fedmcc evaluate --protocol`: what it shows, and what it leaves in the run directory."""

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from fedmcc.runs import directory, protocols

Command = Callable[..., Result]


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def recorded(run: Path) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = json.loads((run / "evaluation.json").read_text())
    return found


def test_what_is_shown_is_what_is_recorded(fedmcc: Command, run: Path) -> None:
    shown = succeeded(fedmcc("evaluate", run, "--protocol", "kmeans, knn", "--seeds", 3)).stdout
    found = recorded(run)
    assert found == protocols.evaluate(directory.load_run(run), ["kmeans", "knn"], seeds=3)
    for score in found["kmeans"].values():
        assert f"{score['mean']:.3f} ± {score['std']:.3f}" in shown
    assert f"{found['knn']['acc']['mean']:.3f} │" in shown  # nothing was drawn: no deviation
    assert "held-out fifth, 20 images" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_later_results_stand_beside_earlier_ones_and_replace_their_own(fedmcc: Command, run: Path) -> None:
    succeeded(fedmcc("evaluate", run, "--protocol", "clustering,kmeans"))
    before = recorded(run)
    succeeded(fedmcc("evaluate", run, "--protocol", "kmeans,knn", "--seeds", 2))
    after = recorded(run)
    assert list(after) == ["clustering", "kmeans", "knn"]
    assert after["clustering"] == before["clustering"]
    assert [len(found["kmeans"]["acc"]["values"]) for found in (before, after)] == [1, 2]


def test_another_network_of_the_run_is_shown_and_not_recorded(fedmcc: Command, unfinished: Path) -> None:
    (network,) = (unfinished / "resume").glob("model-*.safetensors")
    words = ("evaluate", unfinished, "--checkpoint", network)
    assert "clustering" in succeeded(fedmcc(*words, "--protocol", "clustering")).stdout
    assert not (unfinished / "evaluation.json").exists()
    assert "cluster sizes" in succeeded(fedmcc(*words)).stdout


def test_the_last_committed_network_of_a_run_is_its_final_one(fedmcc: Command, run: Path) -> None:
    (network,) = (run / "resume").glob("model-*.safetensors")
    words = ("evaluate", run, "--protocol", "clustering")
    shown = succeeded(fedmcc(*words)).stdout
    assert succeeded(fedmcc(*words, "--checkpoint", network)).stdout == shown
