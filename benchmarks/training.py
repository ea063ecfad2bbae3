"""A training step, compared with transformers' BLIP of the same sizes, captions and precision.

    bash scripts/benchmark.sh training [--quick]

A step is forward, backward and AdamW, with dropout. Both captioners share parameters and optimiser
state, so that both fit in memory. On a GPU, peak memory is measured during the step. On a CPU, it
is measured in a process that builds only one captioner with its optimiser and takes a step.
"""

import argparse
import copy
import functools
import sys
from typing import Any

import torch
from torch import Tensor

from benchmarks.captioners import SMOOTHING, our_captioner, their_captioner
from benchmarks.measure import Work, compare, peak_memory
from benchmarks.topic import Cases, program
from BLIP import BlipCaptioner
from smile import Objective

OURS, OURS_SMILE, COMPILED, THEIRS = (
    *("ours", "ours, MLE + SMILE", "ours, compiled"),
    "transformers",
)
SMILE = {"mle": 0.01, "smile": 0.99}
CAPTIONS_PER_IMAGE = {"1 a step": 1, "5 a step": 5}
CPU_BATCH, GPU_BATCH = 4, 32
TOKENS = (20, 27, 33, 40)  # lengths of captions, including prompt and end token
CPU = torch.device("cpu")


def captions(tiny: bool, images: int, per_image: int) -> list[list[str]]:
    """`per_image` random captions of each image. Their lengths cycle through TOKENS."""
    generator = torch.Generator().manual_seed(0)

    def caption(index: int) -> str:
        words = TOKENS[index % len(TOKENS)] - 5
        ids = torch.randint(8, 60 if tiny else 30522, (words,), generator=generator)
        return " ".join(f"w{i}" for i in ids.tolist())

    return [[caption(i * per_image + j) for j in range(per_image)] for i in range(images)]


def images(ours: BlipCaptioner, count: int) -> Tensor:
    """Images of noise (count, 3, S, S), always the same."""
    size = ours.visual_encoder.patch_embed.img_size[0]
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


class Training:
    """Training steps of our captioner and of transformers', which share their parameters."""

    def __init__(self, tiny: bool, peer: bool, device: torch.device = CPU):
        self.tiny, self.device = tiny, device
        self.ours = our_captioner(tiny).train().to(device)
        self.theirs = their_captioner(self.ours, share=True).train().to(device) if peer else None
        # Our runs use the fused AdamW. Users of transformers get torch's default.
        settings = {"lr": 1e-5, "weight_decay": 0.05}
        self.our_optimizer = torch.optim.AdamW(self.ours.parameters(), fused=True, **settings)
        self.their_optimizer = torch.optim.AdamW(self.ours.parameters(), **settings)
        self.their_optimizer.state = self.our_optimizer.state

    @functools.cached_property
    def compiled(self) -> BlipCaptioner:
        """Our captioner with `compile: true`, which shares the parameters."""
        shared = (*self.ours.parameters(), *self.ours.buffers(), self.ours.tokenizer)
        captioner = copy.deepcopy(self.ours, {id(thing): thing for thing in shared})
        captioner.compile_parts()
        return captioner

    def loss(self, contender: str, image: Tensor, texts: list[list[str]]) -> Tensor:
        """The loss of a contender on images and texts, a list of captions per image.

        transformers' loss is MLE, its only objective, on the tokens of our tokeniser. transformers
        needs one image per caption, so it encodes an image once for each of its captions.
        """
        ours = self.ours
        if contender != THEIRS:
            return (self.compiled if contender == COMPILED else ours)(image, texts).loss
        flat = [ours.prompt + text for group in texts for text in group]
        tokens, mask = ours.tokenizer.encode(flat, ours.max_tokens)
        labels = tokens.masked_fill(mask == 0, -100)
        labels[:, : len(ours.prompt_ids)] = -100
        batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
        batch = {name: value.to(self.device) for name, value in batch.items()}
        repeated = image.repeat_interleave(len(texts[0]), dim=0)
        return self.theirs(pixel_values=repeated, **batch).loss

    def step(self, contender: str, autocast: bool, per_image: int = 1) -> Work:
        batch = GPU_BATCH if self.device.type == "cuda" and not self.tiny else CPU_BATCH
        image = images(self.ours, batch).to(self.device)
        texts = captions(self.tiny, batch, per_image)
        optimizer = self.their_optimizer if contender == THEIRS else self.our_optimizer
        objective = Objective(SMILE if contender == OURS_SMILE else "mle", SMOOTHING)

        def call() -> float:
            model = self.compiled if contender == COMPILED else self.ours
            model.text_decoder.objective = objective
            with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
                loss = self.loss(contender, image, texts)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        return call


def whole_training(contender: str, tiny: bool, autocast: bool, per_image: int = 1) -> Work:
    """The `Work` for measuring memory on a CPU: builds captioner and optimiser, takes a step."""

    def call() -> None:
        training = Training(tiny, contender == THEIRS)
        for parameter in training.ours.parameters():
            parameter.grad = torch.zeros_like(parameter)
        training.our_optimizer.step()
        training.our_optimizer.zero_grad(set_to_none=True)
        training.step(contender, autocast, per_image)()

    return call


def cases(options: argparse.Namespace) -> Cases:
    on_gpu, rounds = options.device.type == "cuda", options.rounds
    items = (GPU_BATCH if on_gpu and not options.quick else CPU_BATCH, "images")
    training = functools.cache(lambda: Training(options.quick, True, options.device))

    def steps(autocast: bool, compiled: bool = False) -> dict[str, Any]:
        names = [OURS, OURS_SMILE, *([COMPILED] if compiled else []), THEIRS]
        memory = None
        if not on_gpu:
            memory = {
                who: peak_memory(whole_training, who, options.quick, autocast) for who in names
            }
        works = {who: training().step(who, autocast) for who in names}
        return compare(works, [THEIRS], rounds, items, memory)

    def several_captions() -> dict[str, Any]:
        """Steps with one and with five captions per image. The ratio compares whole steps."""
        memory = None
        if not on_gpu:
            memory = {
                name: peak_memory(whole_training, OURS, options.quick, True, k)
                for name, k in CAPTIONS_PER_IMAGE.items()
            }
        works = {name: training().step(OURS, True, k) for name, k in CAPTIONS_PER_IMAGE.items()}
        return compare(works, ["1 a step"], rounds, items, memory)

    rows: dict[str, Any] = {"step, bf16 autocast": lambda: steps(True)}
    if not options.quick:
        rows["step, fp32"] = lambda: steps(False)
    rows["captions of an image, bf16"] = several_captions
    if on_gpu:  # last, since compilation takes longest
        rows["step, bf16, compiled"] = lambda: steps(True, True)
    return rows


main = program("training", __doc__, 3, cases)

if __name__ == "__main__":
    sys.exit(main())
