"""Read a run directory without torch: python examples/read_run.py runs/demo-001"""

import argparse
import csv
from collections import Counter
from pathlib import Path

from fedmcc import load_run


def main() -> None:
    """Print the metrics of each round, the final scores and the most frequent labels of each cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = load_run(parser.parse_args().run)

    for row in run.rows():
        acc = f"  ACC {row['acc']:.3f}" if "acc" in row else ""  # absent without labels or scoring
        loss = "" if row["loss"] is None else f"  loss {row['loss']:.3f}"  # None if the stage trains nothing
        print(f"{row['stage']} {row['round']}{loss}{acc}")
    if not run.finished:
        print(f"Not finished: fedmcc resume {run.path}")
        return

    scores = run.read_json("scores.json")
    for name, values in scores["scores"].items():
        print(name, " ".join(f"{key} {value:.3f}" for key, value in values.items()))
    with run.assignments_file.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for cluster in range(scores["clusters"]):
        labels = Counter(row["label"] for row in rows if int(row["cluster"]) == cluster)
        print(f"cluster {cluster}: {labels.total()} images, most often labelled {labels.most_common(3)}")


if __name__ == "__main__":
    main()
