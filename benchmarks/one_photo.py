"""One photo, from the shell to its caption: the whole program, and where its time goes.

    bash scripts/benchmark.sh one_photo [--quick]
    python -m benchmarks.one_photo --beside ../earlier

BLIP-base at 384 pixels with made-up weights in a file, 3 beams, a caption of 20 tokens, a photo of
640 x 480. "transformers" is a program of its own that does the same with a folder of the same
weights. `--beside` names another copy of this project, in which the same command is run, too. The
note tells the phases of one process: medians, the process's start and its imports as one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Optional

from benchmarks.measure import alternate, program, row

REPOSITORY = Path(__file__).resolve().parent.parent
BEAMS, LENGTH = 3, 20
PHASES = ("imports", "loading", "preparing", "reading", "encoding", "decoding")
THEIRS = """
import sys
from PIL import Image
from transformers import AutoProcessor, BlipForConditionalGeneration
folder, photo, beams, length = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder)
model = BlipForConditionalGeneration.from_pretrained(folder).eval()
inputs = processor(Image.open(photo).convert("RGB"), "a picture of", return_tensors="pt")
lengths = {"min_length": int(length), "max_length": int(length)}
made = model.generate(**inputs, num_beams=int(beams), do_sample=False, **lengths)
print(processor.decode(made[0], skip_special_tokens=True))
"""


def make_files(folder: Path, tiny: bool) -> None:
    """base.pth with vocab.txt and config.yaml, hf/ with the same weights, and photo.jpg."""
    import numpy as np
    import torch
    from PIL import Image

    from benchmarks.captioners import TINY, our_captioner
    from BLIP.convert import save_hf, write_vocabulary

    captioner = our_captioner(tiny)
    torch.save({"model": captioner.state_dict()}, folder / "base.pth")
    write_vocabulary(captioner.tokenizer, folder)
    keys = {"image_root": ".", "ann_root": ".", "tokenizer": str(folder / "vocab.txt")}
    keys.update(TINY if tiny else {})
    (folder / "config.yaml").write_text(json.dumps(keys))
    save_hf(captioner, folder / "hf")
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((640, 480), Image.BICUBIC).save(folder / "photo.jpg")


def ours(copy: Path, folder: Path) -> list[str]:
    """The command of a copy of this project."""
    lengths = ["--num_beams", BEAMS, "--min_length", LENGTH, "--max_length", LENGTH]
    config = ["--config", folder / "config.yaml"]
    out = ["--out", folder / "captions.jsonl", "--existing", "overwrite"]
    words = ["bash", copy / "scripts/caption.sh", folder / "base.pth", folder / "photo.jpg"]
    return [str(word) for word in (*words, *out, *config, *lengths)]


def theirs(folder: Path) -> list[str]:
    """The command of transformers."""
    words = [sys.executable, "-c", THEIRS, folder / "hf", folder / "photo.jpg", BEAMS, LENGTH]
    return [str(word) for word in words]


def run(command: Sequence[str]) -> str:
    """Raises CalledProcessError, and shows what the program said."""
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True)
    return done.stdout


def phases(folder: Path, started: float) -> dict[str, float]:
    """Seconds of each of PHASES, in this process, which was started at that `time.time()`."""
    import torch

    import captioning.caption  # noqa: F401
    from captioning.data import load_image
    from captioning.models.build import captioner_from, preprocessing_of, trained_config

    ends = [time.time()]

    def end() -> None:
        ends.append(time.time())

    checkpoint = str(folder / "base.pth")
    changes = {"num_beams": BEAMS, "min_length": LENGTH, "max_length": LENGTH, "precision": "fp32"}
    config = trained_config(checkpoint, str(folder / "config.yaml"), changes)
    captioner, _ = captioner_from(config, checkpoint)
    end()
    captioner = captioner.for_inference(torch.float32, False)
    end()
    image = preprocessing_of(config).one(load_image(folder / "photo.jpg"))
    end()
    with torch.inference_mode():
        encoded = captioner.encode(image)
        end()
        captioner.generate_from(encoded, config.decoding_settings())
    end()
    return {name: end - start for name, start, end in zip(PHASES, [started, *ends], ends)}


def measured_phases(folder: Path, rounds: int) -> str:
    """Each in as many fresh processes, medians, in words."""
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "benchmarks.one_photo", "--phases", str(folder)]
        found.append(json.loads(run([*command, "--started", str(time.time())])))
    medians = {name: statistics.median(each[name] for each in found) for name in PHASES}
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items())


def measure(beside: Optional[Path], quick: bool, rounds: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, quick)
        commands = {"ours": ours(REPOSITORY, folder)}
        if beside is not None:
            commands["beside"] = ours(beside, folder)
        if has_blip():
            commands["transformers"] = theirs(folder)
        works = {name: partial(run, words) for name, words in commands.items()}
        seconds = alternate(works, rounds, warmup=0 if quick else 1)
        note = measured_phases(folder, rounds)
        yield row("one photo", seconds, list(commands)[-1], note=note)


def has_blip() -> bool:
    """Whether this version of transformers has BLIP."""
    import transformers

    return hasattr(transformers, "BlipConfig")


def main(argv: Optional[Sequence[str]] = None) -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--beside", type=Path)
    own.add_argument("--phases", type=Path)
    own.add_argument("--started", type=float)
    given, rest = own.parse_known_args(argv)
    if given.phases is not None:
        print(json.dumps(phases(given.phases, given.started)))
        return
    program("one_photo", __doc__, 5, partial(measure, given.beside))(rest)


if __name__ == "__main__":
    main()
