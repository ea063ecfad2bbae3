"""Unpack a data set stored as one file of tensors, such as `coco.pt`, into images and annotations.

    python -m captioning.unpack coco.pt data/coco_pt

Writes train.json, val.json and a PNG file for each image with a caption, for `dataset: custom`.
Unknown words become <unk> in the captions. Captioners with a word vocabulary read <unk> as their
<UNK>.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from adapters.program import program_parser
from BLIP.weights.safe_load import PickledError, read_pickled
from captioning.files.writing import require_folder, user_errors, write_json
from captioning.runtime.errors import UserError
from captioning.runtime.program import run_program
from captioning.runtime.progress import log_line, progress

START, END, PADDING = "<START>", "<END>", "<NULL>"
CONTENT = (
    "a dict of train_images and val_images, uint8 (N, 3, H, W); train_captions and val_captions, "
    "ids (N, L); and vocab, which has idx_to_token, a list of the words with <START>, <END> and "
    "<NULL>"
)


class Split(NamedTuple):
    """The train or val split. images: uint8 (N, 3, H, W). captions: N texts, maybe empty."""

    images: Tensor
    captions: list[str]


def read_tensor_file(path: Path) -> dict[str, Split]:
    """Return {split: images and captions}, without running code from the file. Raises UserError."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        content = read_pickled(path)
    except (PickledError, OSError) as error:
        raise UserError(f"{path} {error}") from None
    try:
        words = dict(enumerate(content["vocab"]["idx_to_token"]))
        return {split: _split(content, split, words) for split in ("train", "val")}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path}: expected {CONTENT}") from None


def _split(content: dict[str, Any], split: str, words: dict[int, str]) -> Split:
    images, ids = content[f"{split}_images"], content[f"{split}_captions"].tolist()
    batch, channels, _, _ = images.shape
    is_valid = images.dtype == torch.uint8 and (batch, channels) == (len(ids), 3)
    if not is_valid or not {START, END, PADDING} <= set(words.values()):
        raise ValueError
    return Split(images, [_text([words[number] for number in row]) for row in ids])


def _text(words: list[str]) -> str:
    end = words.index(END) if END in words else len(words)
    said = (word for word in words[:end] if word not in (START, PADDING))
    return " ".join(word.lower() if word == "<UNK>" else word for word in said)


def write_split(split: Split, name: str, folder: Path, first_id: int) -> int:
    """Write the images that have a caption, then NAME.json; return the number of these images.

    name: the name of the split, such as "train". Image ids start at `first_id`.
    """
    rows = []
    with user_errors(folder / name), progress(len(split.captions), name) as bar:
        (folder / name).mkdir(exist_ok=True)
        for index, caption in enumerate(split.captions):
            bar.update()
            if caption:
                image_id = first_id + index
                row = {"image": f"{name}/{image_id:06d}.png", "caption": caption}
                pixels = split.images[index].permute(1, 2, 0).numpy()
                Image.fromarray(pixels).save(folder / row["image"])
                rows.append({**row, "image_id": image_id})
    write_json(rows, folder / f"{name}.json")
    return len(rows)


def unpack(path: Path, folder: Path) -> str:
    """Write the images and annotations of all splits; return a summary. Raises UserError."""
    splits = read_tensor_file(path)
    require_folder(folder)
    summary, first_id = [], 0
    for name, split in splits.items():
        written, count = write_split(split, name, folder, first_id), len(split.captions)
        first_id += count
        left_out = f", {count - written} without a caption left out" if written < count else ""
        summary.append(f"{written} images of {name}{left_out}")
    return f"{'; '.join(summary)}: {folder}"


def main(argv=None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    parser = program_parser("python -m captioning.unpack", __doc__)
    parser.add_argument("file", type=Path, help="the data set, such as coco.pt")
    parser.add_argument("folder", type=Path, help="the folder for images and annotations")
    arguments = parser.parse_args(argv)
    interrupted = "stopped; the same command starts from the beginning"
    return run_program(lambda: log_line(unpack(arguments.file, arguments.folder)), interrupted)


if __name__ == "__main__":
    sys.exit(main())
