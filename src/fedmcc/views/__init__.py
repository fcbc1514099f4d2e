"""The augmentation family T as batched tensor operations, with presets per kind of image."""

from fedmcc.views.family import Views
from fedmcc.views.parameters import Parameters
from fedmcc.views.picture import contact_sheet
from fedmcc.views.presets import PRESETS, preset

__all__ = ["PRESETS", "Parameters", "Views", "contact_sheet", "preset"]
