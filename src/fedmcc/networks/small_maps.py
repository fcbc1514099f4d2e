"""Convolutions with outputs of few positions, computed as matrix products.

On a small map most taps of a kernel meet padding alone: on a 1x1 map, one tap of nine meets a value.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

MAX_POSITIONS = 2  # per axis of the output; a convolution of more is as fast (benchmarks/small_maps.py)

Span = tuple[slice, slice]  # along one axis: a part of the map, and the taps that it meets


class Conv2d(nn.Conv2d):
    """A square convolution without bias that uses only the taps that meet the map, where that is faster.

    Weights and their gradients have the shapes of `nn.Conv2d`: a tap that meets padding alone gets a zero.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding, bias=False)

    def forward(self, input: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        positions = len(self._starts(max(input.shape[2:])))
        if input.device.type != "cpu" or positions > MAX_POSITIONS:
            return super().forward(input)
        maps, weight = input.permute(0, 2, 3, 1), self.weight.permute(0, 2, 3, 1)
        if self.kernel_size == (1, 1):
            joined = F.linear(maps[:, :: self.stride[0], :: self.stride[1]], weight[:, 0, 0], self.bias)
        else:
            joined = self._by_position(maps, weight)
        return joined.permute(0, 3, 1, 2)  # strides as of a convolution in channels-last order

    def _by_position(
        self, maps: Float[Tensor, "n h w c"], weight: Float[Tensor, "c2 kernel kernel c"]
    ) -> Float[Tensor, "n h2 w2 c2"]:
        """A product for each position of the output."""
        rows, columns = (self._spans(length) for length in maps.shape[1:3])
        products = [
            F.linear(maps[:, row, column].flatten(1), weight[:, above, beside].flatten(1), self.bias)
            for row, above in rows
            for column, beside in columns
        ]
        return torch.stack(products, dim=1).view(len(maps), len(rows), len(columns), -1)

    def _spans(self, length: int) -> list[Span]:
        """For each position of the output, the part of the map and the taps that meet."""
        ends = [
            (start, max(0, start), min(length, start + self.kernel_size[0])) for start in self._starts(length)
        ]
        return [(slice(low, high), slice(low - start, high - start)) for start, low, high in ends]

    def _starts(self, length: int) -> range:
        """Where on a map of this length the kernel starts, for each position of the output."""
        padding = int(self.padding[0])
        return range(-padding, length + padding - self.kernel_size[0] + 1, self.stride[0])
