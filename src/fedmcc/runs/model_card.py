"""The model card of an exported network: what it is, how to use it, how good it is, and its limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from typing import Any, NamedTuple

from fedmcc import config
from fedmcc.data.decode import HeightWidth
from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import read_csv
from fedmcc.runs.directory import Run
from fedmcc.runs.predict import Predictor

CARD_MARK = b"<!-- model card of fedmcc -->"
SCORES = {  # name in scores.json: what the number means
    "acc": "ACC, the fraction of images in the cluster of their class under the best one-to-one matching",
    "nmi": "NMI, the mutual information with the classes, 0 to 1",
    "ari": "ARI, the agreement on pairs of images, 0 for chance, 1 for equality",
}
LABEL_FREE = {
    "confidence": "confidence, the mean of the largest assignment",
    "balance": "balance, 1 if all clusters have the same size, 0 if all images are in one",
    "silhouette": "silhouette, the separation of the clusters, −1 to 1",
}


class ClusterFacts(NamedTuple):
    """A cluster that was not merged into another one."""

    number: int
    name: str | None
    size: int | None  # images of the run; None if the run scored none


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """What a model card and the metadata of an exported file state."""

    settings: config.Config
    config_sha256: str
    sides: HeightWidth
    channels: int
    clusters: list[ClusterFacts]
    classes: list[str]  # labels of the run's images; empty without labels
    scores: Mapping[str, Any]


def read_facts(run: Run, predictor: Predictor) -> ModelFacts:
    """The facts of a complete run, whose network was loaded."""
    scores, edits = run.read_json("scores.json"), predictor.edits
    if not isinstance(scores.get("clusters"), int):
        raise InputError(f"{run.path} is not complete: finish it with `fedmcc resume`.")
    sizes = scores.get("sizes") or []
    clusters = [
        ClusterFacts(number, edits.names.get(number), sizes[number] if number < len(sizes) else None)
        for number in range(scores["clusters"])
        if number not in edits.merged
    ]
    digest = sha256(run.config_file.read_bytes()).hexdigest()
    settings = config.load(run.config_file)  # with the first weights, whose licence applies
    return ModelFacts(settings, digest, *predictor.target, clusters, _classes(run), scores)


def _classes(run: Run) -> list[str]:
    if not run.assignments_file.exists():
        return []
    return sorted({row.get("label") or "" for row in read_csv(run.assignments_file)} - {""})


def write_card(facts: ModelFacts, file: str, digest: str) -> str:
    """The model card of an ONNX file with this name and SHA-256, as Markdown."""
    sections = (_head(facts, file, digest), _use(facts, file), _data(facts), _clusters(facts))
    lines = (line for section in (*sections, _scores(facts), _limits(facts)) for line in section)
    return "\n".join((CARD_MARK.decode(), *lines)) + "\n"


def _head(facts: ModelFacts, file: str, digest: str) -> Iterator[str]:
    method, encoder = (config.name_of(key, getattr(facts.settings, key)) for key in ("method", "encoder"))
    yield f"# {file}"
    yield ""
    yield f"A network that assigns images to {len(facts.clusters)} clusters, which were found without labels."
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| Written by | fedmcc {version('fedmcc')} |"
    yield f"| Method and encoder | `{method}`, `{encoder}` |"
    yield f"| SHA-256 of the file | `{digest}` |"
    yield f"| SHA-256 of the configuration | `{facts.config_sha256}` |"


def _use(facts: ModelFacts, file: str) -> Iterator[str]:
    (height, width), colours = facts.sides, "grey" if facts.channels == 1 else "RGB"
    yield from ("", "## Use", "")
    yield f"Input `images`: uint8, n × {facts.channels} × {height} × {width}, {colours}, 0 to 255, any n."
    yield "Turn photographs upright, scale them to cover this size and crop the centre."
    yield "Everything else (scaling to 0 … 1, resizing, mean and standard deviation) is in the graph."
    yield ""
    yield "| Output | Shape | Meaning |"
    yield "|---|---|---|"
    count = facts.scores["clusters"]
    yield f"| `assignments` | n × {count} | calibrated soft assignments to the clusters; each row sums to 1 |"
    yield "| `clusters` | n | the cluster of each image |"
    yield "| `features` | n × d | the features of the encoder |"
    yield from _code(facts, file)


def _code(facts: ModelFacts, file: str) -> Iterator[str]:
    (height, width), grey = facts.sides, facts.channels == 1
    mode, axes = ("L", "[None, None]") if grey else ("RGB", "[None].transpose(0, 3, 1, 2)")
    yield from (
        "",
        "```python",
        "import numpy as np",
        "import onnxruntime",
        "from PIL import Image, ImageOps",
    )
    yield from ("", f'session = onnxruntime.InferenceSession("{file}")')
    yield f'image = ImageOps.exif_transpose(Image.open("image.jpg")).convert("{mode}")'
    yield f"pixels = np.asarray(ImageOps.fit(image, ({width}, {height})))"
    yield f'assignments, clusters, features = session.run(None, {{"images": pixels{axes}}})'
    yield "```"


def _data(facts: ModelFacts) -> Iterator[str]:
    scores, data = facts.scores, facts.settings.data
    name = config.name_of("data", data)
    folder = f", the folder `{data.root.name}`" if name == "folder" and data.root is not None else ""
    count = facts.settings.partition.clients
    yield from ("", "## Data", "")
    clients = f" The images were shared out among {count} clients." if count > 1 else ""
    scored = f"{scores.get('images') or 0:,} images were scored"
    yield f"Data set `{name}`{folder}, split `{scores.get('split')}`: {scored}.{clients}"
    if facts.classes:
        yield f"Labels, used for scores only: {', '.join(facts.classes)}."
    else:
        yield "The images have no labels."


def _clusters(facts: ModelFacts) -> Iterator[str]:
    yield from ("", "## Clusters", "", "| Cluster | Name | Images |", "|---|---|---|")
    for number, name, size in facts.clusters:
        text = (name or "").replace("|", "\\|")
        yield f"| {number} | {text} | {'' if size is None else f'{size:,}'} |"


def _scores(facts: ModelFacts) -> Iterator[str]:
    yield from ("", "## Scores", "")
    head = facts.scores.get("scores", {}).get("head") or {}
    free = facts.scores.get("label_free") or {}
    found = [(meaning, head.get(key)) for key, meaning in SCORES.items()]
    found += [(meaning, free.get(key)) for key, meaning in LABEL_FREE.items()]
    lines = [f"- {value:.3f}: {meaning}" for meaning, value in found if value is not None]
    yield from lines or ["No images were scored."]
    if lines:
        yield from ("", "Measured on the images above, by the network before it was exported.")
    if warning := facts.scores.get("warning"):
        yield from ("", f"**Warning:** {warning}")


def _limits(facts: ModelFacts) -> Iterator[str]:
    weights = getattr(facts.settings.encoder, "weights", None)
    yield from ("", "## Limits", "")
    yield "- Every image gets a cluster, also one of a kind that was not in the data."
    yield "- An assignment is not a calibrated probability: a short training can give values near 1."
    yield "- Clusters are groups that look alike to the network. Their names were given by a person."
    yield "- Scores are of the images above. Images of another source, size or quality can be worse."
    yield from ("", "## Licence", "")
    path = getattr(facts.settings.encoder, "path", None)
    if path is not None:
        digest = getattr(facts.settings.encoder, "sha256", None)
        yield f"The file includes the pretrained encoder `{path.name}` (SHA-256 `{digest}`):"
        yield "its licence applies, see where it was published."
    elif weights is None:
        yield "The network was trained from random weights: no licence of a pretrained encoder applies."
    else:
        yield f"Training started from the weights `{weights.name}`: their licence applies, see their source."
    yield "The rights to the images and to this file are those of the people who trained it."
