"""Read a run directory without torch: python examples/read_run.py runs/demo-001"""

import argparse
import csv
from collections import Counter
from pathlib import Path

from fedmcc import load_run


def main() -> None:
    """Print the curve, the final scores and what each cluster holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = load_run(parser.parse_args().run)

    for row in run.rows():
        acc = f"  ACC {row['acc']:.3f}" if "acc" in row else ""  # absent without labels, or if not scored
        loss = "" if row["loss"] is None else f"  loss {row['loss']:.3f}"  # some stages train nothing
        print(f"{row['stage']} {row['round']}{loss}{acc}")
    if not run.finished:
        print(f"Not finished: fedmcc resume {run.path}")
        return

    scores = run.read_json("scores.json")
    for name, found in scores["scores"].items():
        print(name, " ".join(f"{key} {value:.3f}" for key, value in found.items()))
    with run.assignments_file.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for cluster in range(scores["clusters"]):
        labels = Counter(line["label"] for line in lines if int(line["cluster"]) == cluster)
        print(f"cluster {cluster}: {labels.total()} images, most often labelled {labels.most_common(3)}")


if __name__ == "__main__":
    main()
