"""DICOM images as a viewer shows them: with their window, polarity and orientation."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmcc.data.pixel_range import eight_bits

if TYPE_CHECKING:
    from PIL.Image import Image


def read_dicom(path: Path, max_pixels: int) -> "Image":
    """Read a DICOM file, of several frames the middle one, as an image of 8 bits per channel."""
    from PIL import Image
    from pydicom import dcmread, pixels

    data = dcmread(path)
    if int(data.Rows) * int(data.Columns) > max_pixels:
        raise Image.DecompressionBombError
    frames = int(data.get("NumberOfFrames", 1) or 1)
    values = pixels.pixel_array(data, index=frames // 2)  # colours are converted to RGB
    if data.PhotometricInterpretation == "PALETTE COLOR":
        values = eight_bits(pixels.apply_color_lut(values, data))
    elif values.ndim == 2:
        values = eight_bits(
            pixels.apply_voi_lut(pixels.apply_modality_lut(values, data), data), _window(data)
        )
        if data.PhotometricInterpretation == "MONOCHROME1":  # low values are bright
            values = 255 - values
    elif values.dtype != np.uint8:
        values = eight_bits(values)
    return Image.fromarray(upright(np.asarray(values, dtype=np.uint8), data.get("ImageOrientationPatient")))


def upright(pixels: np.ndarray, orientation: Any) -> np.ndarray:
    """Flip rows and columns so that they run to the patient's left or back, and down to the back or feet.

    `orientation` has the direction of a row and of a column in the patient's coordinates (left, back, head).
    """
    if orientation is None or len(orientation) != 6:
        return pixels
    row, column = np.array(orientation, dtype=float).reshape(2, 3)
    row_axis, column_axis = np.abs(row).argmax(), np.abs(column).argmax()
    if row[row_axis] < 0:
        pixels = pixels[:, ::-1]
    if (column[column_axis] < 0) != (column_axis == 2):  # towards the head is upside down
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _window(data: Any) -> tuple[float, float] | None:
    """The range of values after the window of the file; None if it has a table instead, or neither."""
    if "WindowWidth" not in data or "VOILUTSequence" in data:
        return None
    # pydicom maps a window to the range of the stored bits, scaled by the modality.
    bits, slope, offset = data.BitsStored, float(data.get("RescaleSlope", 1)), data.get("RescaleIntercept", 0)
    signed = int(data.get("PixelRepresentation", 0)) == 1
    low = -(2 ** (bits - 1)) if signed else 0
    first, last = low * slope + float(offset), (low + 2**bits - 1) * slope + float(offset)
    return min(first, last), max(first, last)
