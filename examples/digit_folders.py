"""Write scikit-learn's handwritten digits as PNG files of three owners, to try a federation with."""

import argparse
from pathlib import Path

from PIL import Image

from fedmcc import load_dataset

OWNERS = ("a", "b", "c")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("images"), help="[images]")
    folder = parser.parse_args().folder
    for number, pixels in enumerate(load_dataset("digits").images):
        path = folder / OWNERS[number % len(OWNERS)] / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(path)
    print(f"{number + 1:,} digits in {', '.join(str(folder / owner) for owner in OWNERS)}")


if __name__ == "__main__":
    main()
