"""Make images and annotation files of a data set that is one file of tensors, as `coco.pt` is.

    python -m captioning.unpack coco.pt data/coco_pt

Writes train.json, val.json and a PNG file of each image, for `dataset: custom`. Words that the file
does not know are <unk> in its captions, and <UNK> to a captioner that counts its words.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from PIL import Image

from captioning.data.tensor_file import Part, read_tensor_file
from captioning.files.writing import refusals_told, require_folder, write_json
from captioning.runtime.program import exit_code
from captioning.runtime.progress import progress, say


def write_part(part: Part, name: str, folder: Path, first_id: int) -> int:
    """Write NAME.json after the images that it names; how many. Ids count on from `first_id`."""
    rows = []
    with refusals_told(folder / name), progress(len(part.captions), name) as bar:
        (folder / name).mkdir(exist_ok=True)
        for number, caption in enumerate(part.captions):
            bar.update()
            if caption:
                image_id = first_id + number
                row = {"image": f"{name}/{image_id:06d}.png", "caption": caption}
                pixels = part.images[number].permute(1, 2, 0).numpy()
                Image.fromarray(pixels).save(folder / row["image"])
                rows.append({**row, "image_id": image_id})
    write_json(rows, folder / f"{name}.json")
    return len(rows)


def unpack(path: Path, folder: Path) -> str:
    """Write all parts of a file; what there is now. Raises UserError."""
    parts = read_tensor_file(path)
    require_folder(folder)
    told, first_id = [], 0
    for name, part in parts.items():
        written, every = write_part(part, name, folder, first_id), len(part.captions)
        first_id += every
        left_out = f", {every - written} without a caption left out" if written < every else ""
        told.append(f"{written} images of {name}{left_out}")
    return f"{'; '.join(told)}: {folder}"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program on its arguments (those of the command line); return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m captioning.unpack", description=__doc__)
    parser.add_argument("file", type=Path, help="such as coco.pt")
    parser.add_argument("folder", type=Path, help="where images and annotations go")
    given = parser.parse_args(argv)
    interrupted = "stopped; the same command begins again"
    return exit_code(lambda: say(unpack(given.file, given.folder)), interrupted)


if __name__ == "__main__":
    sys.exit(main())
