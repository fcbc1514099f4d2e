"""Presets of views for kinds of images."""

from dataclasses import fields, replace
from typing import Any

from fedmcc.errors import unknown
from fedmcc.views.pipeline import Views

# Close to settings with which small encoders learned MNIST well; scale .8 to 1.25 is area .64 to 1.5625.
_DIGITS = Views(
    crop=(0.64, 1.5625),
    ratio=(0.85, 1.18),
    wander=0.0,
    rotation=20.0,
    shear=0.3,
    shift=0.15,
    padding="zeros",
    brightness=0.4,
)

PRESETS: dict[str, Views] = {
    "none": Views(),
    # As published for CC at strength s = .5 (CIFAR, Tiny-ImageNet); its ImageNet runs add blur = .5.
    "photo": Views(
        crop=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        flip=0.5,
        jitter=0.8,
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
        hue=0.1,
        greyscale=0.2,
    ),
    "digits": _DIGITS,
    "fashion": replace(_DIGITS, flip=0.5),
    # Colour shows the stain and small crops may miss the finding, so both vary little.
    "medical": Views(
        crop=(0.5, 1.0),
        ratio=(0.85, 1.18),
        flip=0.5,
        rotation=20.0,
        padding="reflection",
        jitter=0.8,
        brightness=0.2,
        contrast=0.2,
        saturation=0.1,
        hue=0.02,
    ),
}
"""Presets of views by name, augmentations that suit a kind of image; `fedmcc list views`.

Examples
--------
>>> from fedmcc import PRESETS
>>> PRESETS["digits"].rotation
20.0
"""


def preset(name: str, **overrides: Any) -> Views:
    """Return the preset of this name, with the given options replaced."""
    if name not in PRESETS:
        raise unknown("preset of views", name, PRESETS)
    known = [field.name for field in fields(Views)]
    for key in overrides:
        if key not in known:
            raise unknown("option of views", key, known)
    return replace(PRESETS[name], **overrides)
