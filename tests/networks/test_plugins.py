"""Encoders that other packages add by an entry point."""

import pytest

from fedmcc.cli.option_names import check_names
from fedmcc.errors import InputError
from fedmcc.networks import PLUGINS, _of_other_packages

CODE = """
from dataclasses import dataclass
from fedmcc.networks.pixels import Pixels

@dataclass(frozen=True)
class Own:
    '''An encoder of somebody else.'''
    def build(self, channels, size):
        return Pixels(channels, size)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with an encoder and one that cannot be imported."""
    (tmp_path / "own_encoders.py").write_text(CODE)
    facts = tmp_path / "own_encoders-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own-encoders\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{PLUGINS}]\nown = own_encoders:Own\nbroken = no_such:Thing\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_an_installed_package_adds_an_encoder_and_a_broken_one_is_a_warning(package, caplog):
    found = _of_other_packages()
    assert found["own"]().build(3, 4).features == 48
    assert "broken" not in found
    assert "The encoder broken of no_such:Thing cannot be imported" in caplog.text


def test_the_command_line_knows_the_names_of_installed_packages(package):
    check_names({}, ["encoder.name=own", "encoder.depth=3"])
    with pytest.raises(InputError, match=r"Unknown encoder 'others'.*pip install 'fedmcc\[photos\]'"):
        check_names({}, ["encoder.name=others"])
