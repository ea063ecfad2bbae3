"""A training step beside that of transformers' BLIP: the same sizes, captions and precision.

    bash scripts/benchmark.sh training [--quick]

A step is forward, backward and AdamW, with dropout. Both captioners hold the very same parameters
and optimiser state, so that both fit in memory at once. Peak memory is that of a process which
builds one of them alone, with the optimiser's state, and takes a step.
"""

import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Union

import torch
from torch import Tensor

from benchmarks.captioners import SMOOTHING, our_captioner, their_captioner
from benchmarks.measure import Work, alternate, peak_memory, program, row
from BLIP import BlipCaptioner
from smile import Objective

OURS, OURS_SMILE, THEIRS = "ours", "ours, MLE + SMILE", "transformers"
COMPILED = "ours, compiled"
SMILE = {"mle": 0.01, "smile": 0.99}
AN_IMAGE = (1, 5)
PRECISIONS = {False: "step, fp32", True: "step, bf16 autocast"}
BATCH = 4
TOKENS = (20, 27, 33, 40)  # of the captions, prompt and end included


def captions(
    tiny: bool, images: int, an_image: int, tokens: Sequence[int] = TOKENS
) -> list[list[str]]:
    """`an_image` captions of each image, of those numbers of tokens in turn."""
    generator = torch.Generator().manual_seed(0)

    def caption(index: int) -> str:
        words = tokens[index % len(tokens)] - 5
        ids = torch.randint(8, 60 if tiny else 30522, (words,), generator=generator)
        return " ".join(f"w{i}" for i in ids.tolist())

    return [[caption(i * an_image + j) for j in range(an_image)] for i in range(images)]


def images(ours: BlipCaptioner, count: int) -> Tensor:
    """Noise (count, 3, S, S), always the same."""
    size = ours.visual_encoder.patch_embed.img_size[0]
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


class Training:
    """Optimiser steps of either captioner on the same parameters, on a device."""

    def __init__(self, tiny: bool, peer: bool, device: Union[str, torch.device] = "cpu"):
        self.tiny, self.device = tiny, torch.device(device)
        self.ours = our_captioner(tiny).train().to(device)
        self.theirs = their_captioner(self.ours, share=True).train().to(device) if peer else None
        # A run's optimiser, and the one that a user of transformers has by default.
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
        """transformers' is MLE, the one objective that it has; our tokeniser makes its tokens.

        It has an image for each caption, so that one of several is encoded as often.
        """
        ours = self.ours
        if contender != THEIRS:
            return (self.compiled if contender == COMPILED else ours)(image, texts).loss
        flat = [ours.prompt + text for group in texts for text in group]
        tokens, mask = ours.tokenizer.encode(flat, ours.max_tokens)
        labels = tokens.masked_fill(mask == 0, -100)
        labels[:, : len(ours.prompt_ids)] = -100
        given = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
        given = {name: value.to(self.device) for name, value in given.items()}
        repeated = image.repeat_interleave(len(texts[0]), dim=0)
        return self.theirs(pixel_values=repeated, **given).loss

    def step(
        self, contender: str, spec: Any, autocast: bool, an_image: int = 1, batch: int = BATCH
    ) -> Work:
        image = images(self.ours, batch).to(self.device)
        texts = captions(self.tiny, batch, an_image)
        optimizer = self.usual if contender == THEIRS else self.fused
        objective = Objective(spec, SMOOTHING)

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


def whole_training(contender: str, tiny: bool, autocast: bool, spec: Any, an_image: int) -> Work:
    """The work whose memory counts: it builds the captioner and the optimiser's state, too."""

    def call() -> None:
        training = Training(tiny, contender == THEIRS)
        for parameter in training.ours.parameters():
            parameter.grad = torch.zeros_like(parameter)
        training.fused.step()
        training.fused.zero_grad(set_to_none=True)
        training.step(contender, spec, autocast, an_image)()

    return call


def measure(tiny: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """Every row."""

    def memory(contender: str, autocast: bool, spec: Any, an_image: int = 1) -> int:
        return peak_memory(whole_training, contender, tiny, autocast, spec, an_image)

    precisions = (True,) if tiny else (False, True)
    specs = {OURS: (OURS, "mle"), OURS_SMILE: (OURS, SMILE), THEIRS: (THEIRS, "mle")}
    # Before this process holds captioners of its own.
    peaks = {
        autocast: {name: memory(who, autocast, spec) for name, (who, spec) in specs.items()}
        for autocast in precisions
    }
    several = {f"{k} a step": memory(OURS, True, "mle", k) for k in AN_IMAGE}
    training = Training(tiny, peer=True)
    for autocast in precisions:
        works = {n: training.step(who, spec, autocast) for n, (who, spec) in specs.items()}
        seconds = alternate(works, rounds)
        yield row(PRECISIONS[autocast], seconds, THEIRS, peaks[autocast], (BATCH, "images"))
    works = {f"{k} a step": training.step(OURS, "mle", True, k) for k in AN_IMAGE}
    seconds = alternate(works, rounds)
    each = {f"{k} a step": [t / k for t in seconds[f"{k} a step"]] for k in AN_IMAGE}
    yield row("captions of an image, bf16", each, "1 a step", several, (BATCH, "captions"))


main = program("training", __doc__, 3, measure)

if __name__ == "__main__":
    main()
