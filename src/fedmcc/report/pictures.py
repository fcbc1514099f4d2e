"""PNG files of `fedmcc views` and `fedmcc partition`: views of images, and images per client and class."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.data.partition import Holdings
from fedmcc.errors import InputError
from fedmcc.numerics.randomness import generator
from fedmcc.report.plotting import png_mark
from fedmcc.storage.atomic_files import require_own, write_output
from fedmcc.views import PRESETS, contact_sheet

VIEWS, HOLDINGS = "fedmcc views", "fedmcc partition"  # values of the keyword `Software` in a PNG file
IMAGES_PER_PRESET = 6
TITLE_HEIGHT = 18  # pixels above each sheet
PAGE_SIDE = 1200  # pixels that the cells of a table share, within the limits of a cell
MIN_CELL, MAX_CELL = 6, 56  # pixels
MIN_NUMBERED_CELL = 34  # pixels: smaller cells have no room for a number
MARGIN = 12
MAX_NAME_LETTERS = 24
DISC_COLOUR = "#86b6e0"

Font = ImageFont.FreeTypeFont


def write_views(dataset: str, preset: str, settings: Sequence[str], path: Path, force: bool = False) -> None:
    """Draw one sheet per preset: each row is an image, then views of it. `all` draws every preset."""
    require_own_png(path, VIEWS, force)
    names = [name for name in PRESETS if name != "none"] if preset == "all" else [preset]
    configs = [_resolve(dataset, name, settings) for name in names]
    images = _sample(configs[0].data.load())
    sheets = []
    for name, chosen in zip(names, configs, strict=True):
        title = chosen.data.views if name == "auto" else name
        draw = generator(chosen.general.seed, "picture")
        sheets.append((title, contact_sheet(images, chosen.views, draw)))
    _write_png(_stack(sheets), path, VIEWS)


def write_holdings(held: Holdings, path: Path, force: bool = False) -> None:
    """Draw a row per client and a column per class, with discs whose area is the number of images."""
    require_own_png(path, HOLDINGS, force)
    clients = [f"client {name}" if name.isdigit() else name for name in held.clients]
    cell = int(np.clip(PAGE_SIDE / max(held.counts.shape), MIN_CELL, MAX_CELL))
    rows, columns = ([_shortened(name) for name in names] for names in (clients, held.classes))
    _write_png(DiscTable(cell, _font(cell), rows, columns).draw(held.counts), path, HOLDINGS)


def require_own_png(path: Path, software: str, force: bool) -> None:
    """Raise InputError if the path does not end in .png, or is a file that this software did not write.

    Call it before any work is done.
    """
    if path.suffix.lower() != ".png":
        raise InputError(f"{path} is not a PNG file: give --out a name that ends in .png.")
    require_own(path, [png_mark(software)], force)


@dataclass(frozen=True)
class DiscTable:
    """The layout of a table of discs, in pixels."""

    cell: int
    font: Font
    rows: Sequence[str]
    columns: Sequence[str]

    def draw(self, counts: Int64[np.ndarray, "rows columns"]) -> Image.Image:
        """The table with names at the left and on top, and the total of each row at the right."""
        left = MARGIN + max(map(self._length, self.rows))
        top = MARGIN + max(self._column_name(name).height for name in self.columns)
        totals = [f"{total:,}" for total in counts.sum(axis=1)]
        right = MARGIN + max(map(self._length, totals))
        size = (left + self.cell * len(self.columns) + right, top + self.cell * len(self.rows) + MARGIN)
        page = Image.new("RGB", size, "white")
        self._draw_discs(page, (left, top), counts)
        self._draw_names(page, (left, top), totals)
        return page

    def _draw_discs(self, page: Image.Image, corner: tuple[int, int], counts: np.ndarray) -> None:
        largest, cell = max(int(counts.max()), 1), self.cell
        for row, column in np.argwhere(counts > 0):
            count = int(counts[row, column])
            diameter = max(2.0, (cell - 2) * (count / largest) ** 0.5)
            x, y = corner[0] + int(column) * cell, corner[1] + int(row) * cell
            page.paste(DISC_COLOUR, (x, y), _disc_mask(cell, diameter))
            if cell >= MIN_NUMBERED_CELL:
                centre = (x + cell / 2, y + cell / 2)
                ImageDraw.Draw(page).text(centre, str(count), fill="black", font=self.font, anchor="mm")

    def _draw_names(self, page: Image.Image, corner: tuple[int, int], totals: Sequence[str]) -> None:
        """Draw every name, or every second, third etc. if they would overlap."""
        step = -(-int(self.font.size * 1.2) // self.cell)
        pen, (left, top) = ImageDraw.Draw(page), corner
        for row in range(0, len(self.rows), step):
            middle = top + (row + 0.5) * self.cell
            pen.text((left - 6, middle), self.rows[row], fill="black", font=self.font, anchor="rm")
            pen.text((page.width - 6, middle), totals[row], fill="grey", font=self.font, anchor="rm")
        for column in range(0, len(self.columns), step):
            name = self._column_name(self.columns[column])
            middle = left + int((column + 0.5) * self.cell)
            page.paste(name, (middle - name.width // 2, top - 6 - name.height))

    def _column_name(self, name: str) -> Image.Image:
        """A name, rotated if any name is wider than its column."""
        line = Image.new("RGB", (self._length(name), int(self.font.size * 1.3)), "white")
        ImageDraw.Draw(line).text((0, line.height / 2), name, fill="black", font=self.font, anchor="lm")
        rotated = max(map(self._length, self.columns)) > self.cell - 4
        return line.transpose(Image.Transpose.ROTATE_90) if rotated else line

    def _length(self, text: str) -> int:
        return int(self.font.getlength(text)) + 1


def _disc_mask(cell: int, diameter: float) -> Image.Image:
    """A mask with a smooth edge: it is drawn four times as large and reduced."""
    mask = Image.new("L", (4 * cell, 4 * cell))
    near, far = 2 * (cell - diameter), 2 * (cell + diameter)
    ImageDraw.Draw(mask).ellipse((near, near, far, far), fill=255)
    return mask.resize((cell, cell), Image.Resampling.BOX)


def _font(cell: int) -> Font:
    font = ImageFont.load_default(size=min(14.0, max(9.0, cell * 0.3)))
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME_LETTERS else name[: MAX_NAME_LETTERS - 1] + "…"


def _write_png(picture: Image.Image, path: Path, software: str) -> None:
    buffer, info = io.BytesIO(), PngInfo()
    info.add_text("Software", software)  # by which `require_own_png` recognises the file
    picture.save(buffer, format="PNG", pnginfo=info)
    write_output(path, buffer.getvalue())


def _resolve(dataset: str, preset: str, settings: Sequence[str]) -> config.Config:
    folder = Path(dataset).is_dir()
    data = {"name": "folder", "root": dataset} if folder else {"name": dataset}
    return config.parse(config.apply_settings({"data": data, "views": {"preset": preset}}, settings))


def _sample(images: ImageSet) -> torch.Tensor:
    rows = np.linspace(0, len(images) - 1, min(IMAGES_PER_PRESET, len(images))).round().astype(int)
    return torch.from_numpy(images.images[rows])


def _stack(sheets: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """The sheets below one another, each under its title."""
    width = max(sheet.width for _, sheet in sheets)
    height = sum(sheet.height + TITLE_HEIGHT for _, sheet in sheets)
    page = Image.new("RGB", (width, height), "white")
    top = 0
    for title, sheet in sheets:
        ImageDraw.Draw(page).text((4, top + 3), title, fill="black")
        page.paste(sheet, (0, top + TITLE_HEIGHT))
        top += TITLE_HEIGHT + sheet.height
    return page
