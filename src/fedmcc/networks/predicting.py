"""Networks with a predictor q, which guesses one view's projection from the other's."""

from torch import nn

from fedmcc.networks.momentum import Branch, MomentumPair, Network


class Predicting(Network):
    """One branch and a predictor on top of it."""

    def __init__(self, online: Branch, predictor: nn.Module) -> None:
        super().__init__(online)
        self.predictor = predictor


class PredictingPair(MomentumPair):
    """An online branch with a predictor on top of it, and a target without one."""

    def __init__(self, online: Branch, predictor: nn.Module) -> None:
        super().__init__(online)
        self.predictor = predictor
