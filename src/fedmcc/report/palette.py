"""A distinct colour for each cluster, class or client, readable on light and dark backgrounds."""

import colorsys

BASE_COLOURS = (  # chosen by hand
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
UNLABELLED_COLOUR = "#9aa3af"
HUE_STEP = 0.618034  # of a full turn, the golden ratio: each new hue falls into the widest gap so far


def palette(count: int) -> list[str]:
    """The given number of colours; a longer palette begins with the colours of a shorter one."""
    return [
        BASE_COLOURS[number] if number < len(BASE_COLOURS) else _generated(number) for number in range(count)
    ]


def _generated(number: int) -> str:
    lightness = (0.58, 0.48, 0.66)[number % 3]
    channels = colorsys.hls_to_rgb((number * HUE_STEP) % 1, lightness, 0.55)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)
