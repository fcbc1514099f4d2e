"""The commands, in the order in which `fedmcc --help` lists them."""

from fedmcc.cli import training as training  # isort: skip
from fedmcc.cli import report as report  # isort: skip
from fedmcc.cli import looking as looking
from fedmcc.cli import reproducing as reproducing
from fedmcc.cli.program import app, main

__all__ = ["app", "main"]
