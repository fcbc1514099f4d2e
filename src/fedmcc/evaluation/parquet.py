"""Tables of assignments as Parquet files, written block by block; needs pyarrow."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedmcc.errors import InputError

MARK = {b"fedmcc": b"assignments"}  # metadata of the files that fedmcc writes
WHOLE_NUMBERS, NUMBERS = ("cluster", "second"), ("confidence", "distance")  # columns; the others are text

Block = Sequence[Mapping[str, Any]]  # rows of a table, by column


def is_available() -> bool:
    """Whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def require_parquet(path: Path | None, force: bool) -> None:
    """Raise InputError if pyarrow is missing, or if the file exists and fedmcc did not write it."""
    if not is_available():
        raise InputError(f'{path} needs pyarrow: pip install "fedmcc[parquet]", or choose a name in .csv.')
    if path is not None and path.is_file() and not force and not _is_own(path):
        raise InputError(f"{path} exists and was not written by this command: use --force to replace it.")


def parquet_chunks(blocks: Iterable[Block]) -> Iterator[bytes]:
    """The bytes of a Parquet file with these rows; each block, which must not be empty, is a row group."""
    import pyarrow as pa
    from pyarrow import parquet

    sink, writer = _Sink(), None
    for block in blocks:
        schema = _schema(block[0])
        writer = writer or parquet.ParquetWriter(pa.PythonFile(sink, mode="w"), schema)
        writer.write_table(pa.Table.from_pylist([*block], schema=schema))
        yield from sink.take()
    if writer is not None:
        writer.close()
        yield from sink.take()


def _is_own(path: Path) -> bool:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return False
    return MARK.items() <= metadata.items()


def _schema(row: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    kinds = dict.fromkeys(WHOLE_NUMBERS, pa.int32()) | dict.fromkeys(NUMBERS, pa.float32())
    return pa.schema([(name, kinds.get(name, pa.string())) for name in row], metadata=MARK)


class _Sink:
    """A file in memory whose content is taken out as it is written."""

    closed = False

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._written = 0

    def write(self, data: Any) -> int:
        """Keep a chunk until it is taken."""
        self._chunks.append(bytes(data))
        self._written += len(self._chunks[-1])
        return len(self._chunks[-1])

    def tell(self) -> int:
        """Number of bytes written so far."""
        return self._written

    def flush(self) -> None:
        """Do nothing: chunks are taken, not flushed."""

    def close(self) -> None:
        """Do nothing: the last chunks are taken after the end."""

    def take(self) -> list[bytes]:
        """The chunks since the last call."""
        taken, self._chunks = self._chunks, []
        return taken
