"""The public names of fedmcc are cheap to import, typed, documented, and their examples run."""

import doctest
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import griffe
import pytest

import fedmcc

pytestmark = pytest.mark.slow  # takes seconds

LOSSES = [f"losses.{name}" for name in fedmcc.losses.__all__]
NAMES = [*(name for name in fedmcc.__all__ if name != "losses"), *LOSSES]

Entry = griffe.Object | griffe.Alias
names = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def package() -> Entry:
    """The package as type checkers and the API reference read it, without importing it."""
    source = Path(fedmcc.__file__).parents[1]
    return griffe.load("fedmcc", search_paths=[str(source)], resolve_aliases=True)


def test_importing_fedmcc_is_fast_and_loads_neither_torch_nor_numpy() -> None:
    script = (
        "import sys, time; start = time.process_time(); import fedmcc; spent = time.process_time() - start\n"
    )
    script += "assert not {'numpy', 'torch'} & set(sys.modules); print(spent)"
    command = [sys.executable, "-c", script]
    done = [subprocess.run(command, capture_output=True, text=True, timeout=60) for _ in range(3)]
    assert [process.stderr for process in done] == ["", "", ""]
    assert min(float(process.stdout) for process in done) < 0.1


def test_without_extras_configurations_are_read_and_methods_listed() -> None:
    """Of the packages of all extras, none is needed before its feature is used."""
    script = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import fedmcc
from fedmcc.cli.app import app

fedmcc.load_config({})
app(["list", "methods"])
"""
    extras = ("cryptography", "dp_accounting", "fastapi", "flwr", "huggingface_hub", "matplotlib", "onnx")
    extras += ("onnxruntime", "peft", "pillow_heif", "pyarrow", "pydicom", "rawpy", "tensorboard", "tifffile")
    command = [sys.executable, "-c", script, *extras, "transformers", "uvicorn"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "fedsimclr" in done.stdout


def test_fedmcc_lists_its_public_names_and_has_no_others() -> None:
    assert dir(fedmcc) == sorted(fedmcc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedmcc.nothing  # noqa: B018


@names
def test_a_public_name_is_the_same_for_type_checkers_and_at_run_time(name: str, package: Entry) -> None:
    assert resolve_name(f"fedmcc:{name}") is resolve_name(package[name].canonical_path)


@names
def test_a_public_name_has_types(name: str, package: Entry) -> None:
    for entry in _with_methods(package[name]):
        if entry.is_function:
            hints = [parameter.annotation for parameter in entry.parameters if parameter.name != "self"]
            assert None not in [*hints, entry.returns], entry.path
        elif entry.is_attribute:
            assert entry.annotation is not None, entry.path


@names
def test_a_public_name_is_documented_with_an_example_that_runs(
    name: str, package: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # runs go to runs/ in the working directory
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    entries = list(_with_methods(package[name]))
    assert not [entry.path for entry in entries if entry.docstring is None]
    assert sum(map(_run_examples, entries))


def _with_methods(entry: Entry) -> Iterator[Entry]:
    """The entry and, if it is a class, its own public methods and properties."""
    yield entry
    if entry.is_class:
        methods = (
            member for member in entry.members.values() if member.is_function or "property" in member.labels
        )
        yield from (method for method in methods if not method.name.startswith("_"))


def _run_examples(entry: Entry) -> int:
    """Run the examples in a docstring and count them."""
    text, path = entry.docstring.value, str(entry.filepath)
    test = doctest.DocTestParser().get_doctest(text, {}, entry.path, path, entry.docstring.lineno)
    output: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=output.append)
    assert not output, "".join(output)
    return len(test.examples)
