"""`fedmcc evaluate --protocol`: what it prints, and what it writes to the run directory."""

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
    results: dict[str, dict[str, dict[str, float]]] = json.loads((run / "evaluation.json").read_text())
    return results


def test_the_printed_scores_are_the_recorded_ones(fedmcc: Command, run: Path) -> None:
    shown = succeeded(fedmcc("evaluate", run, "--protocol", "kmeans, knn", "--seeds", 3)).stdout
    results = recorded(run)
    assert results == protocols.evaluate(directory.load_run(run), ["kmeans", "knn"], seeds=3)
    for score in results["kmeans"].values():
        assert f"{score['mean']:.3f} ± {score['std']:.3f}" in shown
    assert f"{results['knn']['acc']['mean']:.3f} │" in shown  # not random: no deviation
    assert "held-out fifth, 20 images" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_later_results_replace_those_of_their_protocols_and_keep_the_others(
    fedmcc: Command, run: Path
) -> None:
    succeeded(fedmcc("evaluate", run, "--protocol", "clustering,kmeans"))
    before = recorded(run)
    succeeded(fedmcc("evaluate", run, "--protocol", "kmeans,knn", "--seeds", 2))
    after = recorded(run)
    assert list(after) == ["clustering", "kmeans", "knn"]
    assert after["clustering"] == before["clustering"]
    assert [len(results["kmeans"]["acc"]["values"]) for results in (before, after)] == [1, 2]


def test_scores_of_another_checkpoint_are_printed_and_not_recorded(fedmcc: Command, unfinished: Path) -> None:
    (network,) = (unfinished / "resume").glob("model-*.safetensors")
    argv = ("evaluate", unfinished, "--checkpoint", network)
    assert "clustering" in succeeded(fedmcc(*argv, "--protocol", "clustering")).stdout
    assert not (unfinished / "evaluation.json").exists()
    assert "cluster sizes" in succeeded(fedmcc(*argv)).stdout


def test_the_last_committed_network_of_a_run_is_its_final_one(fedmcc: Command, run: Path) -> None:
    (network,) = (run / "resume").glob("model-*.safetensors")
    argv = ("evaluate", run, "--protocol", "clustering")
    shown = succeeded(fedmcc(*argv)).stdout
    assert succeeded(fedmcc(*argv, "--checkpoint", network)).stdout == shown
