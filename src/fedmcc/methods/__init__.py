"""Registry of methods by name; a new method is a file in this folder and a line in METHODS."""

from fedmcc.methods.ae import AE
from fedmcc.methods.base import Clustering, Method, NoClustering, Stage
from fedmcc.methods.cc import CC
from fedmcc.methods.cc_clustering import CCClustering
from fedmcc.methods.cluster_contrast import ClusterContrast
from fedmcc.methods.dac import DAC
from fedmcc.methods.dccm import DCCM
from fedmcc.methods.dec import DEC
from fedmcc.methods.fedbyol import FedBYOL
from fedmcc.methods.fedca import FedCA
from fedmcc.methods.fedema import FedEMA
from fedmcc.methods.federated_kmeans import FederatedKMeans
from fedmcc.methods.fedmcc import FedMCC
from fedmcc.methods.fedmoco import FedMoCo
from fedmcc.methods.fedsimclr import FedSimCLR
from fedmcc.methods.fedsimsiam import FedSimSiam
from fedmcc.methods.fedu import FedU
from fedmcc.methods.gcc import GCC
from fedmcc.methods.idfd import IDFD
from fedmcc.methods.iic import IIC
from fedmcc.methods.informative import InformativeClustering
from fedmcc.methods.jule import JULE
from fedmcc.methods.k_fed import KFed
from fedmcc.methods.landmarks import LandmarkSpectral
from fedmcc.methods.lloyd import LloydKMeans
from fedmcc.methods.matrix_factorisation import MatrixFactorisation
from fedmcc.methods.mcc import MCC
from fedmcc.methods.mice import MiCE
from fedmcc.methods.neighbours import NeighbourClustering
from fedmcc.methods.pcl import PCL
from fedmcc.methods.pica import PICA
from fedmcc.methods.propos import ProPos
from fedmcc.methods.raw import Raw
from fedmcc.methods.scan import SCAN
from fedmcc.methods.swav import SwAV
from fedmcc.methods.vae import VAE

METHODS: dict[str, type[Method]] = {
    "cc": CC,
    "mcc": MCC,
    "fedmcc": FedMCC,
    "fedbyol": FedBYOL,
    "fedu": FedU,
    "fedema": FedEMA,
    "fedsimclr": FedSimCLR,
    "fedsimsiam": FedSimSiam,
    "fedmoco": FedMoCo,
    "fedca": FedCA,
    "raw": Raw,
    "ae": AE,
    "vae": VAE,
    "dec": DEC,
    "jule": JULE,
    "idfd": IDFD,
    "iic": IIC,
    "dac": DAC,
    "dccm": DCCM,
    "pica": PICA,
    "scan": SCAN,
    "gcc": GCC,
    "mice": MiCE,
    "pcl": PCL,
    "propos": ProPos,
    "swav": SwAV,
}
"""Methods by name, each a frozen dataclass whose fields are the hyperparameters; `fedmcc list methods`.

Examples
--------
>>> from fedmcc import METHODS
>>> METHODS["mcc"](rounds=5).momentum
0.99
"""

CLUSTERINGS: dict[str, type[Clustering]] = {
    "informative": InformativeClustering,
    "none": NoClustering,
    "mcc": ClusterContrast,
    "cc": CCClustering,
    "kmeans": FederatedKMeans,
    "lloyd": LloydKMeans,
    "landmarks": LandmarkSpectral,
    "neighbours": NeighbourClustering,
    "k-fed": KFed,
    "matrix-factorisation": MatrixFactorisation,
}
"""Clusterings by name, which may follow a method without a cluster head; `fedmcc list clusterings`.

Examples
--------
>>> from fedmcc import CLUSTERINGS
>>> sorted(CLUSTERINGS)[:4]
['cc', 'informative', 'k-fed', 'kmeans']
"""

RENAMED: dict[str, str] = {
    "fedmcc-plus": 'write method.name = "fedmcc" and clustering.name = "informative"',
    "spectral": 'write clustering.name = "informative"',
    "best": 'write clustering.name = "informative"',
}
"""Names of earlier versions, and what to write instead."""

__all__ = ["CLUSTERINGS", "METHODS", "RENAMED", "Clustering", "Method", "Stage"]
