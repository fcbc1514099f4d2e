"""The paper's figures are files that others can open, and a missing library is a sentence."""

import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fedmcc.errors import InputError
from fedmcc.report import landscape
from fedmcc.report.figures import write_figures
from fedmcc.report.landscape import Landscape
from fedmcc.runs import Run


@pytest.fixture
def run(written: Callable[..., Run]) -> Run:
    run = written()
    run.model_file.write_bytes(b"a network")
    landscape.save(run, Landscape(np.arange(4), np.eye(4, 2, dtype=np.float32), np.zeros(4, np.float32)))
    return run


def test_each_figure_is_a_vector_and_a_pixel_file(run: Run, tmp_path: Path) -> None:
    names = write_figures(run.path, tmp_path / "new" / "figures")
    assert names == ["accuracy", "loss", "tsne-clusters", "tsne-classes"]
    for name in names:
        drawn = ElementTree.parse(tmp_path / "new" / "figures" / f"{name}.svg")
        assert drawn.getroot().tag.endswith("svg")
        with Image.open(tmp_path / "new" / "figures" / f"{name}.png") as picture:
            assert np.asarray(picture.convert("L")).min() < 128


def test_without_matplotlib_a_sentence_says_how_to_get_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install fedmcc\[figures\]"):
        write_figures(run.path, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_where_the_images_are_not_here_the_rest_is_drawn(written: Callable[..., Run], tmp_path: Path) -> None:
    run = written()
    config = run.config_file.read_text().replace('name = "digits"', 'name = "folder"\nroot = "/elsewhere"')
    run.config_file.write_text(config)
    assert write_figures(run.path, tmp_path / "figures") == ["accuracy", "loss"]
