"""The augmentation family T: its options, drawing of parameters, and applying them to images."""

from dataclasses import dataclass
from math import log, radians

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor

from fedmcc.errors import InputError
from fedmcc.views.blur import blur
from fedmcc.views.colour import ColourMap, colour_map, recolour
from fedmcc.views.geometry import PADDINGS, affine, count_halvings, resample
from fedmcc.views.parameters import Parameters
from fedmcc.views.upright import is_suitable, render, upright

Images = UInt8[Tensor, "n c h w"]
Pixels = Float[Tensor, "n c y x"]
Row = Float[Tensor, " n"]
Range = tuple[float, float]

# On a CPU, a batch is processed in passes whose results fit in the cache and whose memory is reused.
PASS_ELEMENTS = 1 << 17  # approximate number of elements per pass
MIN_PASS_SAMPLES = 32  # even if these exceed PASS_ELEMENTS
_NEUTRAL_COLOURS = torch.tensor([[1.0], [1.0], [1.0], [0.0]])  # brightness, contrast, saturation, hue


@dataclass(frozen=True)
class Views:
    """Options of the augmentation family; the defaults leave images unchanged."""

    size: int | None = None  # side of the output in pixels; None: the height and width of the images
    crop: Range = (1.0, 1.0)  # area of the crop as a fraction of the image; above 1 zooms out
    ratio: Range = (1.0, 1.0)  # width / height of the crop, relative to that of the image
    wander: float = 1.0  # share of the possible offset that a crop uses; 0 keeps it at the centre
    flip: float = 0.0  # probability of mirroring left and right
    rotation: float = 0.0  # degrees, in both directions
    shear: float = 0.0  # columns per row, in both directions
    shift: float = 0.0  # in half widths and half heights, in both directions
    padding: str = "border"  # pixels outside the image: zeros, border or reflection
    jitter: float = 1.0  # probability of the next four: brightness, contrast, saturation, hue
    brightness: float = 0.0  # factor 1 ± brightness
    contrast: float = 0.0  # factor 1 ± contrast
    saturation: float = 0.0  # factor 1 ± saturation; no effect on images of one channel
    hue: float = 0.0  # full turns, in both directions; no effect on images of one channel
    greyscale: float = 0.0  # probability; no effect on images of one channel
    blur: float = 0.0  # probability
    sigma: Range = (0.1, 2.0)  # of the Gaussian blur, in output pixels

    def __post_init__(self) -> None:
        self._within(1.0, "flip", "jitter", "greyscale", "blur", "wander", "shift")
        self._within(180.0, "rotation")
        self._within(0.5, "hue")
        self._within(10.0, "shear", "brightness", "contrast", "saturation")
        for name in ("crop", "ratio", "sigma"):
            low, high = getattr(self, name)
            if not 0 < low <= high < float("inf"):
                ends = f"[{low:g}, {high:g}]"
                raise InputError(f"views.{name} is {ends}: give two positive numbers, the lower first.")
        if self.size is not None and self.size < 1:
            raise InputError(f"views.size is {self.size}: give 1 pixel or more.")
        if self.padding not in PADDINGS:
            raise InputError(f"views.padding is '{self.padding}': give one of {', '.join(PADDINGS)}.")

    def _within(self, high: float, *names: str) -> None:
        for name in names:
            if not 0 <= (value := getattr(self, name)) <= high:
                raise InputError(f"views.{name} is {value:g}: give a number between 0 and {high:g}.")

    def __call__(self, images: Images, generator: Generator) -> Pixels:
        """Draw and apply one random view of every image."""
        return self.apply(images, self.draw(len(images), generator))

    def draw(self, count: int, generator: Generator) -> Parameters:
        """Draw parameters for `count` samples; a changed option does not change the draws of the others."""
        low, high = torch.tensor(self._ranges()).T[:, :, None]
        numbers = torch.addcmul(low, high - low, torch.rand((len(low), count), generator=generator))
        probabilities = torch.tensor([[self.flip], [self.jitter], [self.greyscale], [self.blur]])
        flipped, jittered, grey, blurred = torch.rand((4, count), generator=generator) < probabilities
        area, ratio, x, y, right, down, angle, shear, *colours, sigma = numbers
        width, height = self._sides(area, ratio)
        brightness, contrast, saturation, hue = torch.where(jittered, torch.stack(colours), _NEUTRAL_COLOURS)
        return Parameters(
            width=width,
            height=height,
            x=x * (1 - width) + right,
            y=y * (1 - height) + down,
            flip=1 - 2 * flipped.float(),
            angle=angle,
            shear=shear,
            brightness=brightness,
            contrast=contrast,
            saturation=saturation * ~grey,
            hue=hue,
            sigma=sigma * blurred,
        )

    def _ranges(self) -> list[Range]:
        turn = radians(self.rotation)
        factors = (self.brightness, self.contrast, self.saturation)
        both_directions = (self.wander, self.wander, self.shift, self.shift, turn, self.shear)
        return [
            self.crop,
            (log(self.ratio[0]), log(self.ratio[1])),
            *((-limit, limit) for limit in both_directions),
            *((max(0.0, 1 - strength), 1 + strength) for strength in factors),
            (-self.hue, self.hue),
            self.sigma,
        ]

    def _sides(self, area: Row, log_ratio: Row) -> tuple[Row, Row]:
        ratio = log_ratio.exp()
        if self.crop[1] <= 1:  # keep crops inside the image by changing the ratio, not the area
            ratio = ratio.clamp(area, 1 / area)
        return (area * ratio).sqrt(), (area / ratio).sqrt()

    def apply(self, images: Images, parameters: Parameters) -> Pixels:
        """Apply the parameters to the images; a view is in [0, 1] and depends on its own row only."""
        out = torch.empty((len(images), images.shape[1], *self._shape(images)), device=images.device)
        fast = is_suitable(self.padding, self._shape(images), images.device) & upright(parameters)
        for apply, chosen in ((self._render, fast), (self._resample, ~fast)):
            if bool(chosen.all()):
                apply(images, parameters, out)
            elif bool(chosen.any()):
                rows = chosen.nonzero()[:, 0]
                part = torch.empty_like(out[rows])
                apply(images[rows], parameters.take(rows), part)
                out[rows] = part
        return out

    def _render(self, images: Images, parameters: Parameters, out: Pixels) -> None:
        """Compute large views that are not rotated."""
        halvings, colours = self._halvings(images, parameters), colour_map(parameters, images.shape[1])
        for rows in _passes(images, out):
            chosen = ColourMap(*(part[rows] for part in colours))
            render(images[rows], parameters.take(rows), halvings[rows], chosen, out[rows])
            blur(out[rows], parameters.sigma[rows])

    def _resample(self, images: Images, parameters: Parameters, out: Pixels) -> None:
        """Compute any views."""
        device, shape, (channels, height, width) = images.device, self._shape(images), images.shape[1:]
        transform = affine(parameters, height / width).to(device)
        halvings = self._halvings(images, parameters)
        matrix, lift = (part.to(device) for part in colour_map(parameters, channels))
        for rows in _passes(images, out):
            pixels = resample(images[rows], transform[rows], halvings[rows], shape, self.padding)
            recolour(pixels, matrix[rows], lift[rows], out=out[rows])
            blur(out[rows], parameters.sigma[rows])

    def _halvings(self, images: Images, parameters: Parameters) -> Int[Tensor, " n"]:
        shape = self._shape(images)
        return count_halvings(parameters, images.shape[2] / shape[0], images.shape[3] / shape[1])

    def plain(self, images: Images) -> Pixels:
        """Resize the images to `size` and scale them to [0, 1], without augmentation."""
        pixels, shape = images.float().div_(255), self._shape(images)
        if tuple(pixels.shape[2:]) == shape:
            return pixels
        return F.interpolate(pixels, shape, mode="bilinear", antialias=True).clamp_(0, 1)

    def _shape(self, images: Images) -> tuple[int, int]:
        height, width = images.shape[2:]
        return (height, width) if self.size is None else (self.size, self.size)


def _passes(images: Images, out: Pixels) -> list[slice]:
    if images.device.type != "cpu":
        return [slice(None)]
    largest = max(images[:1].numel(), out[:1].numel(), 1)
    step = max(MIN_PASS_SAMPLES, PASS_ELEMENTS // largest)
    return [slice(start, start + step) for start in range(0, len(images), step)]
