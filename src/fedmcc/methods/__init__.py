"""Registry of methods by name; a new method is a file in this folder and a line in METHODS."""

from fedmcc.methods.base import Clustering, Method, NoClustering, Stage
from fedmcc.methods.cc import CC
from fedmcc.methods.cluster_contrast import ClusterContrast
from fedmcc.methods.fedbyol import FedBYOL
from fedmcc.methods.fedca import FedCA
from fedmcc.methods.fedema import FedEMA
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.methods.federated_spectral import FederatedSpectral
from fedmcc.methods.fedmcc import FedMCC
from fedmcc.methods.fedmcc_plus import FedMCCPlus
from fedmcc.methods.fedmoco import FedMoCo
from fedmcc.methods.fedsimclr import FedSimCLR
from fedmcc.methods.fedsimsiam import FedSimSiam
from fedmcc.methods.fedu import FedU
from fedmcc.methods.mcc import MCC

METHODS: dict[str, type[Method]] = {
    "cc": CC,
    "mcc": MCC,
    "fedmcc": FedMCC,
    "fedmcc-plus": FedMCCPlus,
    "fedbyol": FedBYOL,
    "fedu": FedU,
    "fedema": FedEMA,
    "fedsimclr": FedSimCLR,
    "fedsimsiam": FedSimSiam,
    "fedmoco": FedMoCo,
    "fedca": FedCA,
}

CLUSTERINGS: dict[str, type[Clustering]] = {  # stages that may follow a method without a cluster head
    "none": NoClustering,
    "mcc": ClusterContrast,
    "kmeans": FederatedKMeans,
    "spectral": FederatedSpectral,
}

__all__ = ["CLUSTERINGS", "METHODS", "Clustering", "Method", "Stage"]
