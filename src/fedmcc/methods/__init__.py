"""The methods by name. A new one is a file in this folder and a line in METHODS."""

from fedmcc.methods.base import Method, Stage
from fedmcc.methods.cc import CC
from fedmcc.methods.mcc import MCC

METHODS: dict[str, type[Method]] = {
    "cc": CC,
    "mcc": MCC,
}

__all__ = ["METHODS", "Method", "Stage"]
