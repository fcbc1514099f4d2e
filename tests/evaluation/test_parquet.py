import io
import sys

import pytest

from fedmcc.errors import InputError
from fedmcc.evaluation import parquet

pq = pytest.importorskip("pyarrow.parquet")
ROWS = [
    {"image": "Größe.png", "cluster": 3, "confidence": 0.5, "label": None},
    {"image": "b.png", "cluster": 0, "confidence": None, "label": "x"},
]


def test_blocks_are_row_groups_of_one_file_that_is_never_held_as_a_whole():
    chunks = parquet.parquet_chunks([[ROWS[0]], [ROWS[1]]])
    first = next(chunks)
    content = first + b"".join(chunks)
    table = pq.read_table(io.BytesIO(content))
    assert table.to_pylist() == ROWS
    assert pq.ParquetFile(io.BytesIO(content)).num_row_groups == 2


def test_only_its_own_files_are_replaced_unless_forced(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"".join(parquet.parquet_chunks([ROWS])))
    parquet.require_parquet(path, force=False)
    for content in (b"PAR1 something", b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match="use --force"):
            parquet.require_parquet(path, force=False)
    parquet.require_parquet(path, force=True)


def test_missing_pyarrow_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(parquet, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r'needs pyarrow: pip install "fedmcc\[parquet\]"'):
        parquet.require_parquet(tmp_path / "a.parquet", force=False)
