"""The methods by name. A new one is a file in this folder and a line in METHODS."""

from fedmcc.methods.base import Method, Stage
from fedmcc.methods.byol import FedBYOL
from fedmcc.methods.cc import CC
from fedmcc.methods.fedca import FedCA
from fedmcc.methods.fedema import FedEMA
from fedmcc.methods.fedu import FedU
from fedmcc.methods.mcc import MCC
from fedmcc.methods.moco import FedMoCo
from fedmcc.methods.simclr import FedSimCLR
from fedmcc.methods.simsiam import FedSimSiam

METHODS: dict[str, type[Method]] = {
    "cc": CC,
    "mcc": MCC,
    "fedbyol": FedBYOL,
    "fedu": FedU,
    "fedema": FedEMA,
    "fedsimclr": FedSimCLR,
    "fedsimsiam": FedSimSiam,
    "fedmoco": FedMoCo,
    "fedca": FedCA,
}

__all__ = ["METHODS", "Method", "Stage"]
