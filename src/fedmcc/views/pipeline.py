"""The family T: its numbers, how parameters are drawn from it and how they are applied."""

from dataclasses import dataclass
from math import log, radians

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Generator, Tensor

from fedmcc.errors import InputError
from fedmcc.views.blur import blur
from fedmcc.views.colour import colour_map, recolour
from fedmcc.views.geometry import PADDINGS, affine, count_halvings, resample
from fedmcc.views.parameters import Parameters

Images = UInt8[Tensor, "n c h w"]
Pixels = Float[Tensor, "n c y x"]
Row = Float[Tensor, " n"]
Range = tuple[float, float]

# A CPU works on a batch in passes of about so many numbers, and at least so many samples: what a pass
# makes then stays in the cache, and its memory serves the next pass.
PASS_ELEMENTS = 1 << 17
MIN_PASS_SAMPLES = 32
_SAME_COLOURS = torch.tensor([[1.0], [1.0], [1.0], [0.0]])  # brightness, contrast, saturation, hue


@dataclass(frozen=True)
class Views:
    """The numbers of the family; the defaults are the identity."""

    size: int | None = None  # side of the output in pixels; None: the images' own height and width
    crop: Range = (1.0, 1.0)  # area of the crop as a fraction of the image; above 1 zooms out
    ratio: Range = (1.0, 1.0)  # width to height of the crop, relative to the image's own
    wander: float = 1.0  # of the room that a crop has to move, how much it uses: 0 stays at the centre
    flip: float = 0.0  # probability of mirroring left and right
    rotation: float = 0.0  # degrees, to either side
    shear: float = 0.0  # columns moved per row, to either side
    shift: float = 0.0  # in half widths and half heights, to either side
    padding: str = "border"  # what lies outside the image: zeros, border or reflection
    jitter: float = 1.0  # probability of the next four
    brightness: float = 0.0  # factor 1 ± brightness
    contrast: float = 0.0  # factor 1 ± contrast
    saturation: float = 0.0  # factor 1 ± saturation; no effect on images of one channel
    hue: float = 0.0  # turns, to either side; no effect on images of one channel
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
            raise InputError(f"views.size is {self.size}: give a number of pixels of 1 or more.")
        if self.padding not in PADDINGS:
            raise InputError(f"views.padding is '{self.padding}': give one of {', '.join(PADDINGS)}.")

    def _within(self, high: float, *names: str) -> None:
        for name in names:
            if not 0 <= (value := getattr(self, name)) <= high:
                raise InputError(f"views.{name} is {value:g}: give a number between 0 and {high:g}.")

    def __call__(self, images: Images, generator: Generator) -> Pixels:
        """One random view of every image."""
        return self.apply(images, self.draw(len(images), generator))

    def draw(self, n: int, generator: Generator) -> Parameters:
        """Parameters for n samples; a changed number leaves what the others draw as it was."""
        low, high = torch.tensor(self._ranges()).T[:, :, None]
        numbers = torch.addcmul(low, high - low, torch.rand((len(low), n), generator=generator))
        chances = torch.tensor([[self.flip], [self.jitter], [self.greyscale], [self.blur]])
        flipped, jittered, grey, blurred = torch.rand((4, n), generator=generator) < chances
        area, ratio, x, y, right, down, angle, shear, *colours, sigma = numbers
        width, height = self._sides(area, ratio)
        brightness, contrast, saturation, hue = torch.where(jittered, torch.stack(colours), _SAME_COLOURS)
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
        either_side = (self.wander, self.wander, self.shift, self.shift, turn, self.shear)
        return [
            self.crop,
            (log(self.ratio[0]), log(self.ratio[1])),
            *((-far, far) for far in either_side),
            *((max(0.0, 1 - strength), 1 + strength) for strength in factors),
            (-self.hue, self.hue),
            self.sigma,
        ]

    def _sides(self, area: Row, log_ratio: Row) -> tuple[Row, Row]:
        ratio = log_ratio.exp()
        if self.crop[1] <= 1:  # crops stay inside the image: the ratio gives way, the area does not
            ratio = ratio.clamp(area, 1 / area)
        return (area * ratio).sqrt(), (area / ratio).sqrt()

    def apply(self, images: Images, parameters: Parameters) -> Pixels:
        """The views in [0, 1] that these parameters describe, each from its own row alone."""
        device, shape, (channels, height, width) = images.device, self._shape(images), images.shape[1:]
        transform = affine(parameters, height / width).to(device)
        halvings = count_halvings(parameters, height / shape[0], width / shape[1])
        matrix, lift = (part.to(device) for part in colour_map(parameters, channels))
        out = torch.empty((len(images), channels, *shape), device=device)
        for rows in _passes(images, out):
            pixels = resample(images[rows], transform[rows], halvings[rows], shape, self.padding)
            recolour(pixels, matrix[rows], lift[rows], out=out[rows])
            blur(out[rows], parameters.sigma[rows])
        return out

    def plain(self, images: Images) -> Pixels:
        """The images without augmentation: resized to `size` and scaled to [0, 1]."""
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
