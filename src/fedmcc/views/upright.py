"""Crops of large images that are not rotated: resampling and colour in two products per image, on the CPU.

Along rows of pixels, each row of a view is a weighted sum of at most two rows of each colour, which also
applies the colour matrix. Along columns, the weights are a band matrix, multiplied in blocks. Memory stays
small enough for the cache, and no pixel is gathered on its own as in `geometry.resample`.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from fedmcc.views.colour import ColourMap
from fedmcc.views.parameters import Parameters

MIN_POSITIONS = 192 * 192  # of a view; below, `geometry.resample` is as fast, and its results are established
BLOCKS = (16, 32, 28, 24, 20)  # columns that are computed together; one of these must divide the width
ROW_MULTIPLE = 16  # widths are rounded up to it, because the library compiles a function for each width

Image = Shaped[Tensor, "c h w"]  # uint8, or float32 if halved; values are from 0 to 255
Shape = tuple[int, int]


class Taps(NamedTuple):
    """Along one axis, the two neighbouring source positions of each position of a view, and their weights."""

    place: Int[Tensor, "n 2 side"]
    weight: Float[Tensor, "n 2 side"]

    def mirrored(self, flip: Float[Tensor, " n"], length: int) -> "Taps":
        """Positions counted from the other end where `flip` is negative, so that they ascend."""
        turned = (flip < 0)[:, None, None]
        index = torch.where(turned, length - 1 - self.place.flip(1), self.place)
        return Taps(index, torch.where(turned, self.weight.flip(1), self.weight))


def is_suitable(padding: str, shape: Shape, device: torch.device) -> bool:
    """Whether upright views of this shape can be computed here, and faster than by `geometry.resample`."""
    large = shape[0] * shape[1] >= MIN_POSITIONS and _block(shape[1]) > 0
    return large and padding == "border" and device.type == "cpu"


def upright(parameters: Parameters) -> Tensor:
    """Which views are neither rotated nor sheared."""
    return (parameters.angle == 0) & (parameters.shear == 0)


def render(
    images: UInt8[Tensor, "n c h w"],
    parameters: Parameters,
    halvings: Int[Tensor, " n"],
    colours: ColourMap,
    out: Float[Tensor, "n c y x"],
) -> None:
    """Write the upright views to `out`, in [0, 1]; each image is first halved as its crop requires."""
    for level in sorted(set(halvings.tolist())):
        rows = (halvings == level).nonzero()[:, 0]
        source = images.shape[2] >> level, images.shape[3] >> level
        chosen = ColourMap(*(part[rows] for part in colours))
        batch = _Batch(parameters.take(rows), chosen, source, (out.shape[2], out.shape[3]))
        for view, row in enumerate(rows.tolist()):
            image = images[row]
            batch.render(view, F.adaptive_avg_pool2d(image.float(), source) if level else image, out[row])


class _Batch:
    """Weights of views of images of one size, computed together; views are then computed one by one."""

    def __init__(self, parameters: Parameters, colours: ColourMap, source: Shape, shape: Shape) -> None:
        self.shape, self.block = shape, _block(shape[1])
        self.flipped = (parameters.flip < 0).tolist()
        rows = _taps(parameters.height, parameters.y, shape[0], source[0])
        self.spans = _spans(rows)
        self.index = _mixing_index(rows, colours.matrix.shape[1])
        self.mixing = _mixing_weights(rows.weight[:, 1], colours.matrix)
        columns = _taps(parameters.width * parameters.flip, parameters.x, shape[1], source[1])
        columns = columns.mirrored(parameters.flip, source[1])
        self.windows = _windows(columns, self.block)
        start = columns.place[:, :1, :1]
        self.columns = Taps(columns.place - start, columns.weight)
        self.across = _totals(self.columns, 2 * source[1] + ROW_MULTIPLE)  # the longest extent
        lift = colours.lift / (255 * shape[0] * shape[1])
        self.down = lift[:, :, None] * _totals(rows, source[0])[:, None]
        self.starts = torch.arange(0, self.index[0].numel(), self.index.shape[2], dtype=torch.int32)

    def render(self, view: int, source: Image, out: Float[Tensor, "c y x"]) -> None:
        """Compute one view of an image with values from 0 to 255."""
        start, step, width = self.windows[view]
        side, rows = self.shape[1], out.shape[0] * self.shape[0]
        blocks = side // self.block
        extent = (blocks - 1) * step + width
        extent += -extent % ROW_MULTIPLE
        table = self._table(view, source, start, extent)
        index, weights = self.index[view].view(-1), self.mixing[view].view(-1)
        mixed = torch.embedding_bag(table, index, self.starts, False, 0, False, weights)[0]
        along = torch.zeros(extent, side).scatter_add_(0, self.columns.place[view], self.columns.weight[view])
        windows = mixed.as_strided((blocks, rows, width), (step, extent, 1))
        band = along.as_strided((blocks, width, self.block), (step * side + self.block, side, 1))
        products = torch.bmm(windows, band).transpose(0, 1)
        torch.clamp(products, 0, 1, out=out.view(rows, blocks, self.block))

    def _table(self, view: int, source: Image, start: int, extent: int) -> Float[Tensor, "rows extent"]:
        """The part of the image that the view uses, as rows of all colours, and a row of the offset."""
        top, bottom = self.spans[view]
        channels, _, columns = source.shape
        end = min(start + extent, columns)
        if self.flipped[view]:
            part = source[:, top:bottom, columns - end : columns - start].flip(2)
        else:
            part = source[:, top:bottom, start:end]
        table = torch.empty(channels * (bottom - top) + 1, extent)
        pixels = table[:-1]
        pixels.view(channels, bottom - top, extent)[:, :, : end - start] = part
        if end - start < extent:
            pixels[:, end - start :] = 0
        down = self.down[view, :, top:bottom].reshape(-1)
        table[-1] = torch.dot(torch.mv(pixels, self.across[view, :extent]), down)
        return table


def _block(width: int) -> int:
    """The number of columns per block; 0 if no number divides the width."""
    return next((block for block in BLOCKS if width % block == 0), 0)


def _taps(scale: Float[Tensor, " n"], centre: Float[Tensor, " n"], side: int, length: int) -> Taps:
    """Positions and weights of bilinear interpolation, rounded as `grid_sample` rounds them."""
    position = torch.arange(1 - side, side, 2) / side
    grid = scale[:, None] * position + centre[:, None]
    source = ((grid + 1).double() * (length / 2) - 0.5).float().clamp_(0, length - 1)  # one rounding: FMA
    low, weight = source.long(), source.frac()
    index = torch.stack([low, (low + 1).clamp_(max=length - 1)], dim=1)
    return Taps(index, torch.stack([1 - weight, weight], dim=1))


def _spans(rows: Taps) -> list[list[int]]:
    """First row of the source that each view uses, and the row after the last."""
    spans: list[list[int]] = torch.stack([rows.place[:, 0, 0], rows.place[:, 1, -1] + 1], dim=1).tolist()
    return spans


def _totals(taps: Taps, length: int) -> Float[Tensor, "n length"]:
    """The sum of the weights of each source position."""
    total = torch.zeros(len(taps.place), length)
    return total.scatter_add_(1, taps.place.flatten(1), taps.weight.flatten(1))


def _windows(columns: Taps, block: int) -> list[list[int]]:
    """The parts of the source that blocks of columns need, of equal width and at equal distances.

    For each view: the start of the first part, the distance between starts, and the width.
    """
    low, high = columns.place[:, 0, ::block], columns.place[:, 1, block - 1 :: block]
    number = torch.arange(low.shape[1])
    start = low[:, :1]
    step = ((low - start)[:, 1:] // number[1:]).amin(dim=1, keepdim=True)
    width = (high - start - step * number).amax(dim=1, keepdim=True) + 1
    windows: list[list[int]] = torch.cat([start, step, width], dim=1).tolist()
    return windows


def _mixing_index(rows: Taps, channels: int) -> Int[Tensor, "n mixed taps"]:
    """For each row of a view, the rows of the table that it needs: two of each colour, and the last."""
    top, bottom = rows.place[:, :1, :1], rows.place[:, 1:, -1:] + 1
    count = (bottom - top)[..., None]
    pairs = (rows.place - top).transpose(1, 2)[..., None] + torch.arange(channels) * count
    last = (channels * count).expand(-1, pairs.shape[1], 1, 1).flatten(2)
    index = torch.cat([pairs.flatten(2), last], dim=2).int()
    return index.repeat(1, channels, 1)


def _mixing_weights(
    second: Float[Tensor, "n y"], matrix: Float[Tensor, "n c c"]
) -> Float[Tensor, "n mixed taps"]:
    """Weights of the rows of `_mixing_index` for each colour of a view."""
    down = torch.stack([1 - second, second], dim=2)[:, None, :, :, None]
    mixing = (matrix / 255)[:, :, None, None, :] * down
    return F.pad(mixing.flatten(3).flatten(1, 2), (0, 1), value=1)
