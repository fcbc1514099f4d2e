"""The commands, in the order in which `fedmcc --help` lists them."""

from fedmcc.cli import training as training  # isort: skip
from fedmcc.cli import report as report  # isort: skip
from fedmcc.cli import looking as looking  # isort: skip
from fedmcc.cli import reproducing as reproducing  # isort: skip
from fedmcc.cli import federation as federation  # isort: skip
from fedmcc.cli import server as server  # isort: skip
from fedmcc.cli import site as site
from fedmcc.cli.program import app, main

__all__ = ["app", "main"]
