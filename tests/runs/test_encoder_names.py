"""Encoders as people name them."""

import pytest

from fedmcc.errors import InputError
from fedmcc.runs.encoder_names import encoder_section


@pytest.mark.parametrize("name", ["lite0.onnx", "LITE0.ONNX"])
def test_an_onnx_file_is_known_by_its_ending(name, tmp_path):
    path = tmp_path / name
    path.touch()
    assert encoder_section(str(path)) == {"name": "onnx", "path": str(path)}


def test_a_missing_onnx_file_is_named():
    with pytest.raises(InputError, match=r"There is no file nosuch\.onnx"):
        encoder_section("nosuch.onnx")


def test_other_names_are_those_of_the_registry():
    assert encoder_section("convnet") == {"name": "convnet"}


def test_a_registered_name_is_no_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lite2").mkdir()
    assert encoder_section("lite2") == {"name": "lite2"}
    assert encoder_section("./lite2") == {"name": "huggingface", "path": "lite2"}
