"""The augmentation family T as batched tensor operations, with presets for kinds of images."""

from fedmcc.views.contact_sheet import contact_sheet
from fedmcc.views.parameters import Parameters
from fedmcc.views.pipeline import Views
from fedmcc.views.presets import PRESETS, preset

__all__ = ["PRESETS", "Parameters", "Views", "contact_sheet", "preset"]
