"""Draw a captioner's attention maps over a photo, one frame per word.

    python -m captioning.attend --checkpoint output/sat_coco/checkpoint_best.pth photo.jpg
    python -m captioning.attend --checkpoint blip.pth --config configs/caption_coco.yaml photo.jpg

Writes photo_gaze.png to the current folder, or the file given by --output. Works with BLIP, Show,
Attend and Tell, and the attention LSTM.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import math
import sys
from pathlib import Path

from PIL import Image

from captioning.data.image import load_image
from captioning.files.stores import key_of
from captioning.files.writing import atomic_write, user_errors
from captioning.models.build import load_trained, preprocessing_of
from captioning.models.reranking import Reranker
from captioning.models.score_tokens import END, ScoredCaption, scored_captions
from captioning.runtime import distributed
from captioning.runtime.errors import UserError, visible
from captioning.runtime.program import add_model_flags, program_parser, run_program

FRAMES_PER_ROW = 8
MAX_SIDE = 400  # pixels; a larger photo is scaled down


def draw(scored: ScoredCaption, photo: Image.Image, path: Path) -> None:
    """Write a PNG with the photo, then a frame per word with the word's attention map over it.

    Each attention map is interpolated to the photo's size and divided by its maximum.
    """
    from matplotlib.figure import Figure

    photo = photo.copy()
    photo.thumbnail((MAX_SIDE, MAX_SIDE))
    count = len(scored.words) + 1
    rows, columns = math.ceil(count / FRAMES_PER_ROW), min(count, FRAMES_PER_ROW)
    height = 2 * min(1, photo.height / photo.width) + 0.2  # inches, with the word
    figure = Figure((2 * columns, height * rows), layout="constrained")
    photo_frame, *frames = (figure.add_subplot(rows, columns, n + 1) for n in range(count))
    photo_frame.axis("off")
    photo_frame.imshow(photo)
    for frame, word, weights in zip(frames, scored.words, scored.resized_maps(*photo.size[::-1])):
        frame.axis("off")
        frame.set_title(word, fontsize=11, parse_math=False)
        frame.imshow(photo.convert("L"), cmap="gray", alpha=0.6)
        frame.imshow(weights.numpy(), cmap="inferno", alpha=0.6, vmin=0, vmax=1)
    with user_errors(path), atomic_write(path) as file:
        figure.savefig(file, format="png")


def main(argv=None) -> int:
    """Run the program; return its exit code, which is 2 after a one-line error for the user."""
    parser = program_parser("python -m captioning.attend", __doc__)
    add = parser.add_argument
    add("image", type=Path, metavar="IMAGE")
    add("--checkpoint", required=True, help="a path, a URL or hf://")
    add_model_flags(parser)
    add("--output", type=Path, help="default: IMAGE's name and _gaze.png")
    arguments = parser.parse_args(argv)
    output = arguments.output or Path(f"{arguments.image.stem}_gaze.png")
    is_photo = key_of(str(output)) == key_of(str(arguments.image))
    if output.suffix != ".png" or output.is_dir() or is_photo:
        parser.error(f"--output is {output}; it has to be another file, which ends in .png")
    return run_program(lambda: attend(arguments, output), "stopped")


def attend(arguments: argparse.Namespace, output: Path) -> None:
    """Caption the photo, draw the attention maps and print the caption. Raises UserError."""
    device = distributed.start(arguments.device)
    photo = load_image(arguments.image)
    config, captioner = load_trained(arguments.checkpoint, arguments.config, device)
    reranking = config.reranking()
    reranker = Reranker(captioner, reranking, device) if reranking else None
    image = preprocessing_of(config).one(photo).to(device)
    [scored] = scored_captions(captioner, image, config.decoding_settings(), reranker)
    if scored.attention_map is None:
        raise UserError(f"model {config.model} gives no attention maps")
    draw(scored, photo, output)
    print(visible(" ".join(word for word in scored.words if word != END)))
    if END not in scored.words:
        print("the caption was cut at max_length", file=sys.stderr)
    print(f"the picture is {output}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
