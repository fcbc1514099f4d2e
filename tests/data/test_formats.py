import numpy as np
import pytest
from PIL import Image, ImageOps

from fedmcc.data import formats
from fedmcc.data.decode import decode
from fedmcc.data.dicom import upright
from fedmcc.data.folder import Folder
from fedmcc.data.scientific_tiff import split_channels
from fedmcc.errors import InputError


@pytest.fixture
def without_readers(monkeypatch):
    """As if no extra were installed."""
    monkeypatch.setattr(formats, "find_spec", lambda name: None)


def write_dicom(path, pixels, **attributes):
    """A DICOM file of one frame with these attributes."""
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    data = pydicom.Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid(entropy_srcs=["test"])
    data.Rows, data.Columns = pixels.shape[:2]
    data.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    data.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    if pixels.ndim == 3:
        data.PlanarConfiguration = 0
    data.BitsAllocated = data.BitsStored = 8 * pixels.itemsize
    data.HighBit, data.PixelRepresentation = data.BitsStored - 1, 0
    data.PixelData = pixels.tobytes()
    for name, value in attributes.items():
        setattr(data, name, value)
    data.save_as(path, enforce_file_format=True)
    return path


def test_heic_is_read(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    image = Image.new("RGB", (64, 32), (200, 30, 30))
    pillow_heif.from_pillow(image).save(tmp_path / "a.heic", quality=95)
    pixels = decode(tmp_path / "a.heic", (16, 16), 3)
    assert abs(pixels.astype(int) - np.reshape((200, 30, 30), (3, 1, 1))).max() < 12


def test_the_window_of_a_dicom_file_is_applied(tmp_path):
    values = np.array([[0, 900], [1000, 4000]], dtype=np.uint16).repeat(8, 0).repeat(8, 1)
    path = write_dicom(
        tmp_path / "a.dcm", values, WindowCenter="950.5", WindowWidth=101, BitsStored=12, HighBit=11
    )
    pixels = decode(path, (16, 16), 1)[0]
    assert pixels[2, 2] == 0  # below the window
    assert pixels[2, 13] == 0  # its lower end
    assert pixels[13, 2] == 255  # its upper end
    assert pixels[13, 13] == 255


def test_low_values_of_monochrome1_are_bright(tmp_path):
    values = np.array([[0, 100]], dtype=np.uint8).repeat(16, 0).repeat(8, 1)
    path = write_dicom(tmp_path / "a.dcm", values, PhotometricInterpretation="MONOCHROME1")
    pixels = decode(path, (16, 16), 1)[0]
    assert (pixels[8, 2], pixels[8, 13]) == (255, 0)


def test_colours_of_dicom_are_kept_and_no_suffix_is_needed(tmp_path):
    values = np.full((8, 8, 3), (10, 200, 30), dtype=np.uint8)
    path = write_dicom(tmp_path / "IM0001", values)
    assert decode(path, (4, 4), 3)[:, 1, 1].tolist() == [10, 200, 30]


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        ((1, 0, 0, 0, 1, 0), lambda image: image),  # axial, as it is shown
        ((-1, 0, 0, 0, 1, 0), ImageOps.mirror),
        ((1, 0, 0, 0, -1, 0), ImageOps.flip),
        ((1, 0, 0, 0, 0, -1), lambda image: image),  # coronal, from head to feet
        ((1, 0, 0, 0, 0, 1), ImageOps.flip),
        (None, lambda image: image),
    ],
)
def test_dicom_images_are_turned_upright(orientation, turn):
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    np.testing.assert_array_equal(upright(pixels, orientation), np.asarray(turn(Image.fromarray(pixels))))


def test_a_tiff_of_five_channels_shows_the_first_three(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    values = np.zeros((5, 16, 16), dtype=np.uint16)
    values[1, :, 8:] = 3000
    values[4] = 77
    tifffile.imwrite(tmp_path / "a.tif", values, planarconfig="separate", photometric="minisblack")
    pixels = decode(tmp_path / "a.tif", (16, 16), 3)
    assert pixels[:, 8, 12].tolist() == [0, 255, 0]
    assert pixels[:, 8, 3].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [((4, 5), "YX", (1, 4, 5)), ((4, 5, 2), "YXS", (2, 4, 5)), ((7, 2, 4, 5), "ZCYX", (2, 4, 5))],
)
def test_channels_come_first_and_stacks_give_their_middle(shape, axes, expected):
    values = np.arange(np.prod(shape)).reshape(shape)
    channels = split_channels(values, axes)
    assert channels.shape == expected
    if axes == "ZCYX":
        np.testing.assert_array_equal(channels, values[3])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a.heic", r"a\.heic is not a readable image \(HEIC, install fedmcc\[heic\] to read it\)"),
        ("a.dcm", r"a\.dcm is not a readable image \(DICOM, install fedmcc\[dicom\] to read it\)"),
        ("a.nef", r"a\.nef is not a readable image \(camera raw, install fedmcc\[raw\] to read it\)"),
        ("a.mp4", "a video, extract its frames"),
        ("a.txt", "not an image"),
    ],
)
def test_a_folder_of_unsupported_files_names_the_remedy(tmp_path, without_readers, name, sentence):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / name).write_bytes(bytes(128) + b"DICM" + bytes(50))
    with pytest.raises(InputError, match=sentence):
        Folder(root=tmp_path / "images").load()


def test_files_are_decoded_again_when_their_reader_is_installed(tmp_path, picture, monkeypatch):
    pillow_heif = pytest.importorskip("pillow_heif")
    picture(tmp_path / "images" / "a.png")
    pillow_heif.from_pillow(Image.new("RGB", (64, 32))).save(tmp_path / "images" / "b.heic")
    with monkeypatch.context() as context:
        context.setattr(formats, "find_spec", lambda name: None)
        context.setattr(Image, "OPEN", {key: value for key, value in Image.OPEN.items() if key != "HEIF"})
        context.setattr(Image, "ID", [key for key in Image.ID if key != "HEIF"])
        assert len(Folder(root=tmp_path / "images").load()) == 1
    assert len(Folder(root=tmp_path / "images").load()) == 2
