"""The commands, in the order in which `fedmcc --help` lists them."""

from fedmcc.cli import training as training  # isort: skip
from fedmcc.cli import looking as looking  # isort: skip
from fedmcc.cli import federation as federation
from fedmcc.cli.program import app, main

__all__ = ["app", "main"]
