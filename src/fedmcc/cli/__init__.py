"""The commands, in the order in which `fedmcc --help` lists them."""

from fedmcc.cli import cluster as cluster  # isort: skip
from fedmcc.cli import run as run  # isort: skip
from fedmcc.cli import report as report  # isort: skip
from fedmcc.cli import edit as edit  # isort: skip
from fedmcc.cli import evaluate as evaluate  # isort: skip
from fedmcc.cli import inspect as inspect  # isort: skip
from fedmcc.cli import export as export  # isort: skip
from fedmcc.cli import serve as serve  # isort: skip
from fedmcc.cli import encoders as encoders  # isort: skip
from fedmcc.cli import reproduce as reproduce  # isort: skip
from fedmcc.cli import federation as federation  # isort: skip
from fedmcc.cli import server as server  # isort: skip
from fedmcc.cli import site as site
from fedmcc.cli.app import app, main

__all__ = ["app", "main"]
