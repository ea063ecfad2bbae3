"""A step of a vision-language model with a large vocabulary, compared with the model's own loss.

    bash scripts/benchmark.sh vlm [--quick]

The model is the one of `vlm.tiny` with width 96 and a large vocabulary, so that logits take most of
the memory. A step is forward and backward on random photos and captions. Memory is the memory of a
step without the gradients.
"""

import argparse
import itertools
import string
import sys
import tempfile
from typing import Any, NamedTuple

import torch
from PIL import Image

import vlm.tiny
from benchmarks.measure import Work, compare, peak_memory
from benchmarks.topic import Cases, program
from smile import Objective
from smile.hf import undo
from vlm.captioner import VlmCaptioner
from vlm.image_batch import ImageBatch
from vlm.library import check_library, model_of
from vlm.prompt import prompt_processor_of

OWN = "the model's own"
OURS = {"MLE": "mle", "0.01 MLE + 0.99 SMILE": {"mle": 0.01, "smile": 0.99}, "SMILE": "smile"}


class Sizes(NamedTuple):
    """Vocabulary V, B photos, k captions per photo, n words per caption."""

    V: int
    B: int = 8
    k: int = 1
    n: int = 20

    def __str__(self) -> str:
        return f"V {self.V:,}, {self.B} photos, {self.k} captions of {self.n} words each"


TINY = Sizes(200, 2, 2, 5)
USUAL = [Sizes(150_000), Sizes(262_144), Sizes(150_000, 2, 5)]


def write(folder: str, V: int) -> None:
    """Write a model with a vocabulary of V words."""
    letters = itertools.product(string.ascii_lowercase, repeat=4)
    words = ["".join(each) for each in itertools.islice(letters, V - len(vlm.tiny.SPECIAL) - 1)]
    vlm.tiny.write(folder, words)


def step(contender: str, sizes: Sizes, folder: str, device: torch.device) -> Work:
    """A `Work`: loss and gradients by one contender. First takes a small step to load libraries."""
    model, question = model_of(folder, weights=True), prompt_processor_of(folder, vlm.tiny.PROMPT)
    objective = Objective(OURS.get(contender, "mle"))
    captioner = VlmCaptioner(model, question, objective, max_tokens=sizes.n + 1).train().to(device)
    words = sorted(word for word in captioner.tokenizer.tokenizer.get_vocab() if len(word) == 4)
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(len(words), (sizes.B, sizes.k, sizes.n), generator=generator).tolist()
    captions = [[" ".join(words[i] for i in each) for each in group] for group in numbers]
    side = vlm.tiny.SIDE
    photos = [Image.new("RGB", (side, side), (20 * n, 100, 200)) for n in range(sizes.B)]
    image = ImageBatch([question(photo) for photo in photos]).to(device)
    if contender == OWN:
        undo(model)

    def call(image: ImageBatch = image, captions: list[list[str]] = captions) -> float:
        model.zero_grad()
        if contender == OWN:
            batch, labels = captioner.rows(image, captions)
            loss = model(**batch, labels=labels).loss
        else:
            loss = captioner(image, captions).loss
        loss.backward()
        return loss.item()

    call(image[:1], [[words[0]]])
    model.zero_grad()
    return call


def measure(sizes: Sizes, options: argparse.Namespace) -> dict[str, Any]:
    names, device = [OWN, *OURS], options.device
    with tempfile.TemporaryDirectory() as folder:
        write(folder, sizes.V)
        gradients = sum(p.nbytes for p in model_of(folder, weights=True).parameters())
        memory = None
        if device.type == "cpu":
            memory = {name: peak_memory(step, name, sizes, folder, device) for name in names}
        works = {name: step(name, sizes, folder, device) for name in names}
        facts = {"memory": memory, "outputs": gradients, "sizes": sizes._asdict()}
        return compare(works, [OWN], options.rounds, **facts)


def cases(options: argparse.Namespace) -> Cases:
    """A row for each vocabulary, and a row for several captions per photo."""
    try:
        check_library()
    except ValueError as error:  # an older version of transformers
        print(error)
        return {}
    sizes = [TINY] if options.quick else USUAL
    return {str(each): lambda each=each: measure(each, options) for each in sizes}


main = program("vlm", __doc__, 3, cases)

if __name__ == "__main__":
    sys.exit(main())
