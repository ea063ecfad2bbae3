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
from typing import Any

import torch
from PIL import Image

from BLIP.checkpoint import CheckpointError, read_pickled
from captioning.files.stores import require_writable
from captioning.files.writing import user_errors, write_json
from captioning.runtime.errors import UserError
from captioning.runtime.program import program_parser, run_program
from captioning.runtime.progress import log_line, progress

SPLITS = ("train", "val")
START, END, PADDING = "<START>", "<END>", "<NULL>"
CONTENT = (
    "a dict of train_images and val_images, uint8 (N, 3, H, W); train_captions and val_captions, "
    "ids (N, L); and vocab, which has idx_to_token, a list of the words with <START>, <END> and "
    "<NULL>"
)


def read_captions(content: Any) -> dict[str, list[str]]:
    """Return {split: a caption for each image, which may be empty} of a file's content.

    Raises KeyError, TypeError, ValueError or AttributeError if it is not CONTENT.
    """
    words = dict(enumerate(content["vocab"]["idx_to_token"]))
    captions = {}
    for split in SPLITS:
        images, ids = content[f"{split}_images"], content[f"{split}_captions"].tolist()
        batch, channels, _, _ = images.shape
        is_valid = images.dtype == torch.uint8 and (batch, channels) == (len(ids), 3)
        if not is_valid or not {START, END, PADDING} <= set(words.values()):
            raise ValueError
        rows = [[words[number] for number in row] for row in ids]
        captions[split] = list(map(_text, rows))
        if cut := sum(END not in row and bool(_text(row)) for row in rows):
            log_line(f"{cut} captions of {split} were cut: they have no {END}")
    return captions


def _text(words: list[str]) -> str:
    end = words.index(END) if END in words else len(words)
    said = (word for word in words[:end] if word not in (START, PADDING))
    return " ".join(word.lower() if word == "<UNK>" else word for word in said)


def unpack(path: Path, folder: Path) -> str:
    """Write the images that have a caption, and the annotations; return a summary.

    Runs no code from the file. Raises UserError.
    """
    try:
        content = read_pickled(path)
        captions = read_captions(content)
    except CheckpointError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path}: expected {CONTENT}") from None
    require_writable(str(folder))
    summary, image_id = [], 0
    for split in SPLITS:
        rows = []
        with user_errors(folder / split), progress(len(captions[split]), split) as bar:
            (folder / split).mkdir(exist_ok=True)
            for pixels, caption in zip(content[f"{split}_images"], captions[split]):
                if caption:
                    name = f"{split}/{image_id:06d}.png"
                    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / name)
                    rows.append({"image": name, "caption": caption, "image_id": image_id})
                image_id += 1
                bar.update()
        write_json(rows, folder / f"{split}.json")
        left_out = len(captions[split]) - len(rows)
        note = f", {left_out} without a caption left out" if left_out else ""
        summary.append(f"{len(rows)} images of {split}{note}")
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
