"""What a training step of BLIP would gain at most by doing less: before it is built, its ceiling.

    python -m benchmarks.training_ceilings [--quick]

One step under bf16 autocast, MLE, as in `benchmarks.training`. Beside it as it is: all captions of
the mean length, so that no row is padded (the ceiling of packing captions into rows, which still
have to be told apart by a mask); captions shorter by the prompt (of computing the prompt's keys
once for all captions); the image encoder's weights kept in 16 bits (no casts, no averages in
float32: other training); the encoder frozen (other training, too); the encoder and AdamW alone.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.captioners import SMOOTHING
from benchmarks.measure import Work, alternate, program, row
from benchmarks.training import BATCH, TOKENS, Training, captions, images
from BLIP import BlipCaptioner
from smile import Objective

AS_IT_IS = "as it is"


class Ceilings:
    """Steps of one captioner, each with less to do."""

    def __init__(self, tiny: bool):
        self.tiny = tiny
        self.training = Training(tiny, peer=False)
        self.half = copy.deepcopy(self.training.ours)
        self.half.visual_encoder.to(torch.bfloat16)
        self.half_optimizer = torch.optim.AdamW(self.half.parameters(), lr=1e-5, fused=True)

    def step(
        self,
        captioner: BlipCaptioner,
        optimizer: torch.optim.Optimizer,
        an_image: int,
        tokens: Sequence[int] = TOKENS,
        frozen: bool = False,
    ) -> Work:
        """tokens: of the captions in turn, prompt and end included."""
        image = images(captioner, BATCH)
        texts = captions(self.tiny, BATCH, an_image, tokens)

        def call() -> None:
            captioner.text_decoder.objective = Objective("mle", SMOOTHING)
            captioner.visual_encoder.requires_grad_(not frozen)
            with torch.autocast("cpu", torch.bfloat16):
                loss = captioner(image, texts).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return call

    def encoder_alone(self) -> Work:
        """Its forward and backward, and AdamW of its weights."""
        captioner, optimizer = self.training.ours, self.training.fused
        image = images(captioner, BATCH)

        def call() -> None:
            captioner.visual_encoder.requires_grad_(True)
            with torch.autocast("cpu", torch.bfloat16):
                states = captioner.visual_encoder(image)
            states.float().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return call

    def works(self, an_image: int) -> dict[str, Work]:
        ours, optimizer = self.training.ours, self.training.fused
        mean, prompt = sum(TOKENS) // len(TOKENS), len(ours.prompt_ids)
        shorter = [tokens - prompt for tokens in TOKENS]
        return {
            AS_IT_IS: self.step(ours, optimizer, an_image),
            "no padding": self.step(ours, optimizer, an_image, [mean] * len(TOKENS)),
            "no prompt": self.step(ours, optimizer, an_image, shorter),
            "encoder in 16 bits": self.step(self.half, self.half_optimizer, an_image),
            "encoder frozen": self.step(ours, optimizer, an_image, frozen=True),
            "encoder alone": self.encoder_alone(),
        }


def measure(tiny: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """A row for one and for five captions of an image."""
    ceilings = Ceilings(tiny)
    for an_image in (1, 5):
        seconds = alternate(ceilings.works(an_image), rounds)
        name = f"step, bf16, captions of an image: {an_image}"
        yield row(name, seconds, AS_IT_IS, items=(BATCH * an_image, "captions"))


main = program("training_ceilings", __doc__, 5, measure)

if __name__ == "__main__":
    main()
