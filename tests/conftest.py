"""Every test has one thread, a fixed global seed, a cache folder of its own, and no network but 127.0.0.1."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Weights that a test draws without a generator of its own are the same in every run."""
    torch.manual_seed(int(os.environ.get("FEDMCC_TEST_SEED", "0")))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where downloads and decoded images go; processes that a test starts inherit it all."""
    monkeypatch.setenv("FEDMCC_DATA", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "cache"
