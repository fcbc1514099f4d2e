"""Pictures for a person to judge: the views that training would see."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.files import write_output
from fedmcc.randomness import generator
from fedmcc.views import PRESETS, contact_sheet

IMAGES = 6  # rows per preset
TITLE = 18  # pixels above each sheet


def write_views(dataset: str, preset: str, settings: Sequence[str], path: Path) -> None:
    """Original images at the left, views of them beside; a sheet per preset asked for."""
    if path.suffix.lower() != ".png":
        raise InputError(f"{path} is not a PNG file: give --out a name that ends in .png.")
    names = [name for name in PRESETS if name != "none"] if preset == "all" else [preset]
    configs = [_configured(dataset, name, settings) for name in names]
    images = _some(configs[0].data.load())
    sheets = []
    for name, chosen in zip(names, configs, strict=True):
        title = chosen.data.views if name == "auto" else name
        draw = generator(chosen.general.seed, "picture")
        sheets.append((title, contact_sheet(images, chosen.views, draw)))
    buffer = io.BytesIO()
    _stacked(sheets).save(buffer, format="PNG")
    write_output(path, buffer.getvalue())


def _configured(dataset: str, preset: str, settings: Sequence[str]) -> config.Config:
    folder = Path(dataset).is_dir()
    data = {"name": "folder", "root": dataset} if folder else {"name": dataset}
    return config.parse(config.apply_settings({"data": data, "views": {"preset": preset}}, settings))


def _some(images: ImageSet) -> torch.Tensor:
    rows = np.linspace(0, len(images) - 1, min(IMAGES, len(images))).round().astype(int)
    return torch.from_numpy(images.images[rows])


def _stacked(sheets: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """The sheets below one another, each under its name."""
    width = max(sheet.width for _, sheet in sheets)
    height = sum(sheet.height + TITLE for _, sheet in sheets)
    page = Image.new("RGB", (width, height), "white")
    top = 0
    for title, sheet in sheets:
        ImageDraw.Draw(page).text((4, top + 3), title, fill="black")
        page.paste(sheet, (0, top + TITLE))
        top += TITLE + sheet.height
    return page
