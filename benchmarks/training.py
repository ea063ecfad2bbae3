"""A training step beside that of transformers' BLIP: the same sizes, captions and precision.

    bash scripts/benchmark.sh training [--quick]

A step is forward, backward and AdamW, with dropout. Both captioners hold the same parameters and
optimiser state, so that both fit in memory at once. On a CPU peak memory is that of a process which
builds one of them alone, with the optimiser's state, and takes a step; on a GPU that of the step.
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
AN_IMAGE = {"1 a step": 1, "5 a step": 5}
CPU_BATCH, GPU_BATCH = 4, 32
TOKENS = (20, 27, 33, 40)  # of the captions, prompt and end included
CPU = torch.device("cpu")


def captions(tiny: bool, images: int, an_image: int) -> list[list[str]]:
    """`an_image` captions of each image, of TOKENS tokens in turn."""
    generator = torch.Generator().manual_seed(0)

    def caption(index: int) -> str:
        words = TOKENS[index % len(TOKENS)] - 5
        ids = torch.randint(8, 60 if tiny else 30522, (words,), generator=generator)
        return " ".join(f"w{i}" for i in ids.tolist())

    return [[caption(i * an_image + j) for j in range(an_image)] for i in range(images)]


def images(ours: BlipCaptioner, count: int) -> Tensor:
    """Noise (count, 3, S, S), always the same."""
    size = ours.visual_encoder.patch_embed.img_size[0]
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


class Training:
    """Optimiser steps of either captioner on the same parameters, on a device."""

    def __init__(self, tiny: bool, peer: bool, device: torch.device = CPU):
        self.tiny, self.device = tiny, device
        self.ours = our_captioner(tiny).train().to(device)
        self.theirs = their_captioner(self.ours, share=True).train().to(device) if peer else None
        # A run's optimiser, and the default that a user of transformers has.
        settings = {"lr": 1e-5, "weight_decay": 0.05}
        self.fused = torch.optim.AdamW(self.ours.parameters(), fused=True, **settings)
        self.usual = torch.optim.AdamW(self.ours.parameters(), **settings)
        self.usual.state = self.fused.state

    @functools.cached_property
    def compiled(self) -> BlipCaptioner:
        """The same parameters under `compile: true`."""
        shared = (*self.ours.parameters(), *self.ours.buffers(), self.ours.tokenizer)
        captioner = copy.deepcopy(self.ours, {id(thing): thing for thing in shared})
        captioner.compile_parts()
        return captioner

    def loss(self, contender: str, image: Tensor, texts: list[list[str]]) -> Tensor:
        """transformers' loss is MLE, the one objective that it has, on our tokeniser's tokens.

        It takes an image for each caption, so several captions of one encode it as often.
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

    def step(self, contender: str, autocast: bool, an_image: int = 1) -> Work:
        batch = GPU_BATCH if self.device.type == "cuda" and not self.tiny else CPU_BATCH
        image = images(self.ours, batch).to(self.device)
        texts = captions(self.tiny, batch, an_image)
        optimizer = self.usual if contender == THEIRS else self.fused
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


def whole_training(contender: str, tiny: bool, autocast: bool, an_image: int = 1) -> Work:
    """The work whose memory counts on a CPU: it builds captioner and optimiser state, too."""

    def call() -> None:
        training = Training(tiny, contender == THEIRS)
        for parameter in training.ours.parameters():
            parameter.grad = torch.zeros_like(parameter)
        training.fused.step()
        training.fused.zero_grad(set_to_none=True)
        training.step(contender, autocast, an_image)()

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

    def several() -> dict[str, Any]:
        """A step with one and with five captions of each image; the ratio is that of steps."""
        memory = None
        if not on_gpu:
            memory = {
                name: peak_memory(whole_training, OURS, options.quick, True, k)
                for name, k in AN_IMAGE.items()
            }
        works = {name: training().step(OURS, True, k) for name, k in AN_IMAGE.items()}
        return compare(works, ["1 a step"], rounds, items, memory)

    found: dict[str, Any] = {"step, bf16 autocast": lambda: steps(True)}
    if not options.quick:
        found["step, fp32"] = lambda: steps(False)
    found["captions of an image, bf16"] = several
    if on_gpu:  # last: it takes longest until it runs
        found["step, bf16, compiled"] = lambda: steps(True, True)
    return found


main = program("training", __doc__, 3, cases)

if __name__ == "__main__":
    sys.exit(main())
