"""The sentences below a table: protocol, scale, images, epochs, seeds and the command."""

from collections.abc import Sequence
from importlib.metadata import version

from fedmcc.config import Config, name_of
from fedmcc.data.thinning import class_shares
from fedmcc.reproduction.cells import Cell, Request
from fedmcc.reproduction.table_spec import Column, Row, Toml, read_shared
from fedmcc.runs.resolve import stages

PROTOCOLS = {
    "clustering": "clusters of the cluster head; rows that name k-means use k-means on features or pixels",
    "linear": "a linear classifier on frozen features, top-1 accuracy on the test images",
    "semi": "training with few labels, top-1 accuracy on the test images",
    "tsne": "NMI of the clusters of the cluster head, on all scored images",
}


def captions(request: Request, cells: Sequence[Cell]) -> list[str]:
    """The sentences below the table."""
    table, smoke = request.table, request.scale == "smoke"
    explanation = [table.explanation] if table.explanation else []
    scale = "; ".join(dict.fromkeys(_describe_setting(cell.config) for cell in cells))
    seeds = "Seed 0" if request.seeds == 1 else f"Seeds 0 to {request.seeds - 1}"
    command = f"fedmcc reproduce {table.key} --scale {request.scale} --seeds {request.seeds}"
    settings = "".join(f" --set {text}" for text in request.settings if not text.startswith("data.root="))
    chosen = [f" --row {key}" for key in request.rows] + [f" --column {key}" for key in request.columns]
    return [
        f"Protocol: {PROTOCOLS[table.protocol]}.",
        *explanation,
        *(["This scale only tests that everything runs: its scores mean nothing."] if smoke else []),
        f"Scale {request.scale}: {scale}.",
        f"Rounds × local epochs: {'; '.join(_describe_training(request, cells))}.",
        f"{seeds}, fedmcc {version('fedmcc')}: `{command}{''.join(chosen)}{settings}`.",
    ]


def column_name(column: Column, cells: Sequence[Cell]) -> str:
    """The name of a column, with the data set if the scale uses another one."""
    return _with_dataset(column, [cell for cell in cells if cell.column == column.key])


def row_name(row: Row, cells: Sequence[Cell]) -> str:
    """The name of a row, with the data set if the scale uses another one."""
    return _with_dataset(row, [cell for cell in cells if cell.row == row.key])


def _with_dataset(line: Column | Row, cells: Sequence[Cell]) -> str:
    used = list(dict.fromkeys(name_of("data", cell.config.data) for cell in cells))
    named = line.values.get("data")
    return line.name if named is None or used in ([], [named]) else f"{line.name}, on {', '.join(used)}"


def _describe_setting(config: Config) -> str:
    """Data set, encoder, clients and scored images of a cell."""
    data, split, partition = name_of("data", config.data), config.evaluation.split, config.partition
    clients = (
        f"{partition.clients} clients ({partition.name})" if partition.clients > 1 else "a single client"
    )
    scored = f"scored on the split {split}" if split else "scored on the training images"
    count = count_images(config)
    images = "images" if count is None else f"{count:,} images"
    encoder = name_of("encoder", config.encoder)
    thinned = f", classes thinned {config.data.thinned:g}:1" if config.data.thinned > 1 else ""
    return f"{data}, {images} of {config.views.size} px{thinned}, {encoder}, {clients}, {scored}"


def count_images(config: Config, labelled_only: bool = False) -> int | None:
    """Number of training images, computed without loading them; None if it is not known."""
    dataset = dataset_facts(config)
    if dataset is None:
        return config.data.limit
    parts = getattr(config.data, "split", "all").split("+")
    parts = [part for part in parts if not (labelled_only and part == "unlabelled")]
    kept = float(class_shares(config.data.thinned, int(dataset["classes"])).mean())
    count = round(kept * sum(int(dataset["images"].get(part, 0)) for part in parts))
    return count if config.data.limit is None else min(count, config.data.limit)


def dataset_facts(config: Config) -> Toml | None:
    """Images, classes and channels of the data set from shared/datasets.toml, or None."""
    facts: Toml | None = read_shared("datasets").get(name_of("data", config.data))
    return facts


def _describe_training(request: Request, cells: Sequence[Cell]) -> list[str]:
    """Rounds and local epochs; rows with equal ones are listed together."""
    rows: dict[str, dict[str, None]] = {}
    for cell in cells:
        trained = [stage for stage in stages(cell.config) if stage.trained and stage.epochs]
        parts = [f"{stage.name} {stage.rounds} × {stage.epochs}" for stage in trained]
        row = request.table.rows[cell.row]
        if row.features_of:
            parts = [f"the encoder of {request.table.rows[row.features_of].name}", *parts]
        rows.setdefault(", ".join(parts) or "nothing is trained", {})[row.name] = None
    return [f"{text} ({', '.join(names)})" for text, names in rows.items()]
