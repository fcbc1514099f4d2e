"""Draws the table of results/generalisation.md from the CSV that benchmarks/recluster.py wrote.

python benchmarks/generalisation.py results/generalisation.csv
"""

import csv
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path

Scores = dict[int, list[float]]  # by the seed of the network, over the seeds of the clustering
FORMER, DEFAULT = ("fedmcc", "spectral"), ("fedmcc", "informative")
SHOWN = {  # heading: method, clustering, score
    "k-means on pixels": ("fedmcc", "pixels, pooled", "unknown"),
    "federated k-means": ("fedmcc", "kmeans", "unknown"),
    "former": (*FORMER, "unknown"),
    "**default**": (*DEFAULT, "unknown"),
    "at its client": (*DEFAULT, "own"),
    "further images": (*DEFAULT, "further"),
    "all masked": ("fedmcc", "informative:prototype_rounds=5,smallest=1", "unknown"),
    "FedSimCLR + default clustering": ("fedsimclr", "informative", "unknown"),
}


def main() -> None:
    """Print a line for each column of decision 35, the mean, and the paired comparison with the former."""
    found = read(Path(sys.argv[1]))
    columns = list(dict.fromkeys(column for method, *_, column in found if method == "fedmcc"))
    print(f"| | {' | '.join(SHOWN)} | default − former |\n|---|{'---|' * (len(SHOWN) + 1)}")
    differences = []
    for column in columns:
        cells = [found.get((*shown, column), {}) for shown in SHOWN.values()]
        each = paired(found, column)
        differences.append(statistics.mean(each))
        text = f"{differences[-1]:+.3f} ± {error_of_mean(each):.3f}"
        print(f"| {column} | {' | '.join(map(spread, cells))} | {text} |")
    means = []
    for shown in SHOWN.values():
        cells = [found[(*shown, column)] for column in columns if (*shown, column) in found]
        means.append(f"{statistics.mean(map(mean, cells)):.3f}" + (f" of {len(cells)}" if cells else ""))
    text = f"{statistics.mean(differences):+.3f} ± {error_of_mean(differences):.3f}"
    print(f"| **mean** | {' | '.join(means)} | {text} |")


def read(path: Path) -> dict[tuple[str, str, str, str], Scores]:
    """The values by method, clustering, score and column."""
    found: dict[tuple[str, str, str, str], Scores] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            method, *column, seed = row["cell"].split("-")
            for score in ("unknown", "own", "further"):
                if row[score]:
                    key = method, row["clustering"], score, " ".join(column)
                    found[key][int(seed)].append(float(row[score]))
    return {key: dict(value) for key, value in found.items()}


def paired(found: dict[tuple[str, str, str, str], Scores], column: str) -> list[float]:
    """The differences of the default and the former clustering, one for each network."""
    former, default = (found.get((*pair, "unknown", column), {}) for pair in (FORMER, DEFAULT))
    seeds = sorted(former.keys() & default.keys())
    return [statistics.mean(default[seed]) - statistics.mean(former[seed]) for seed in seeds]


def error_of_mean(values: list[float]) -> float:
    """The standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))


def mean(cell: Scores) -> float:
    """The mean over networks of the means over clusterings."""
    return statistics.mean(statistics.mean(values) for values in cell.values())


def spread(cell: Scores) -> str:
    """Mean ± sample deviation over the networks."""
    if not cell:
        return "–"
    values = [statistics.mean(own) for own in cell.values()]
    return f"{mean(cell):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
