"""What must be said of a table for its figures to mean something: protocol, scale, images, epochs, seeds."""

from collections.abc import Sequence
from importlib.metadata import version

from fedmcc.config import Config, name_of
from fedmcc.reproduction.cells import Cell, Request
from fedmcc.reproduction.table_spec import Column, Row, Toml, shared
from fedmcc.runs.resolve import stages

PROTOCOLS = {
    "clustering": "clusters of the head, or of k-means on features or pixels where a row says so",
    "linear": "a linear classifier on frozen features, top-1 on the test images",
    "semi": "training with few labels, top-1 on the test images",
    "tsne": "NMI of the head's clusters",
}


def facts(request: Request, cells: Sequence[Cell]) -> list[str]:
    """Sentences for below the table."""
    table = request.table
    said = [f"Protocol: {PROTOCOLS[table.protocol]}.", *([table.explanation] if table.explanation else [])]
    said.append(f"Scale {request.scale}: {'; '.join(dict.fromkeys(setting(cell.config) for cell in cells))}.")
    said.append(f"Rounds × local epochs: {'; '.join(_training(request, cells))}.")
    seeds = "seed 0" if request.seeds == 1 else f"seeds 0 to {request.seeds - 1}"
    command = f"fedmcc reproduce {table.key} --scale {request.scale} --seeds {request.seeds}"
    changed = "".join(f" --set {text}" for text in request.settings if not text.startswith("data.root="))
    return [*said, f"{seeds.capitalize()}, fedmcc {version('fedmcc')}: `{command}{changed}`."]


def heading(column: Column, cells: Sequence[Cell]) -> str:
    """The column's name, and the data set where the scale runs on another."""
    return _named(column, [cell for cell in cells if cell.column == column.key])


def row_name(row: Row, cells: Sequence[Cell]) -> str:
    """The same of a row."""
    return _named(row, [cell for cell in cells if cell.row == row.key])


def _named(line: Column | Row, cells: Sequence[Cell]) -> str:
    used = list(dict.fromkeys(name_of("data", cell.config.data) for cell in cells))
    meant = line.values.get("data")
    return line.name if meant is None or used in ([], [meant]) else f"{line.name}, on {', '.join(used)}"


def setting(config: Config) -> str:
    """On what a cell trains and is scored, in a few words."""
    data, split = name_of("data", config.data), config.evaluation.split
    sharing = config.partition
    who = f"{sharing.clients} clients ({sharing.name})" if sharing.clients > 1 else "one owner"
    scored = f"scored on the split {split}" if split else "scored on the images trained on"
    count = images_of(config)
    number = "images" if count is None else f"{count:,} images"
    return (
        f"{data}, {number} of {config.views.size} px, {name_of('encoder', config.encoder)}, {who}, {scored}"
    )


def images_of(config: Config) -> int | None:
    """How many images a configuration trains on, without loading them; None: that cannot be known."""
    known = described(config)
    if known is None:
        return config.data.limit
    parts = getattr(config.data, "split", "all").split("+")
    count = sum(int(known["images"].get(part, 0)) for part in parts)
    return count if config.data.limit is None else min(count, config.data.limit)


def described(config: Config) -> Toml | None:
    """What is known of the data set without loading it."""
    content: Toml | None = shared("datasets").get(name_of("data", config.data))
    return content


def _training(request: Request, cells: Sequence[Cell]) -> list[str]:
    """Rounds and local epochs, the rows of equal ones together."""
    by_text: dict[str, dict[str, None]] = {}
    for cell in cells:
        trained = [stage for stage in stages(cell.config) if stage.epochs]
        text = ", ".join(f"{stage.name} {stage.rounds} × {stage.epochs}" for stage in trained)
        by_text.setdefault(text, {})[request.table.rows[cell.row].name] = None
    return [f"{text} ({', '.join(names)})" for text, names in by_text.items()]
