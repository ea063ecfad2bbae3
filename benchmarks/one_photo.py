"""The time from the shell to the caption of one photo, compared with a transformers program.

    bash scripts/benchmark.sh one_photo [--quick]

BLIP-base at 384 pixels with random weights in a file, 3 beams, a caption of 20 tokens, a photo of
640 x 480 pixels. "transformers" is a program that does the same with the same weights in a folder.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.captioners import TINY, our_captioner
from benchmarks.measure import compare
from benchmarks.topic import Cases, program
from BLIP.convert import save_hf, write_vocabulary

CAPTION = Path(__file__).resolve().parent.parent / "scripts" / "caption.sh"
BEAMS, LENGTH = 3, 20
THEIRS = """
import sys
from PIL import Image
from transformers import AutoProcessor, BlipForConditionalGeneration
folder, photo, device, beams, length = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder)
model = BlipForConditionalGeneration.from_pretrained(folder).eval().to(device)
inputs = processor(Image.open(photo).convert("RGB"), "a picture of", return_tensors="pt").to(device)
lengths = {"min_length": int(length), "max_length": int(length)}
tokens = model.generate(**inputs, num_beams=int(beams), do_sample=False, **lengths)
print(processor.decode(tokens[0], skip_special_tokens=True))
"""


def write_files(folder: Path, tiny: bool) -> None:
    """Write base.pth, vocab.txt, config.yaml, the folder hf/ with the same weights, photo.jpg."""
    captioner = our_captioner(tiny)
    torch.save({"model": captioner.state_dict()}, folder / "base.pth")
    write_vocabulary(captioner.tokenizer, folder)
    keys = {"image_root": ".", "ann_root": ".", "tokenizer": str(folder / "vocab.txt")}
    keys.update(TINY if tiny else {})
    (folder / "config.yaml").write_text(json.dumps(keys))
    save_hf(captioner, folder / "hf")
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((640, 480), Image.BICUBIC).save(folder / "photo.jpg")


def commands(folder: Path, device: torch.device) -> dict[str, list[str]]:
    photo, lengths = folder / "photo.jpg", ["--min_length", LENGTH, "--max_length", LENGTH]
    found: dict[str, list[Any]] = {
        "ours": [
            *("bash", CAPTION, folder / "base.pth", photo, "--out", folder / "captions.jsonl"),
            *("--existing", "overwrite", "--config", folder / "config.yaml"),
            *("--device", device.type, "--num_beams", BEAMS, *lengths),
        ],
        "transformers": [
            *(sys.executable, "-c", THEIRS, folder / "hf", photo, device.type, BEAMS, LENGTH)
        ],
    }
    return {name: [str(word) for word in words] for name, words in found.items()}


def run(command: Sequence[str]) -> str:
    """Run a program and return its output.

    Raises CalledProcessError after printing the program's stderr.
    """
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True)
    return done.stdout


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, options.quick)
        works = {
            who: functools.partial(run, command)
            for who, command in commands(folder, options.device).items()
        }
        return compare(works, ["transformers"], options.rounds)


def cases(options: argparse.Namespace) -> Cases:
    return {"one photo": lambda: measure(options)}


main = program("one_photo", __doc__, 5, cases)

if __name__ == "__main__":
    sys.exit(main())
