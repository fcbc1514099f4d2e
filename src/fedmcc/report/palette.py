"""A colour for each cluster, class or client, told apart on white and on black."""

import colorsys

FIRST = (
    "#4a7fdb",
    "#ec8a3c",
    "#3fa672",
    "#dc5a5a",
    "#9170d6",
    "#2ba6bd",
    "#d56aae",
    "#a9a032",
    "#a3744d",
    "#7d8899",
)
NOTHING = "#9aa3af"  # of images without a label
GOLDEN = 0.618034  # turns: each hue falls into the widest gap that those before it leave


def palette(count: int) -> list[str]:
    """So many colours; the first ten are chosen by hand."""
    return [FIRST[number] if number < len(FIRST) else _further(number) for number in range(count)]


def _further(number: int) -> str:
    lightness = (0.58, 0.48, 0.66)[number % 3]
    channels = colorsys.hls_to_rgb((number * GOLDEN) % 1, lightness, 0.55)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)
