"""Measures a training step of our BLIP and of transformers' BLIP.

    bash scripts/benchmark.sh training [--quick]

Both have the same sizes, captions and precision. A step is forward, backward and AdamW, with
dropout. Both captioners share parameters and optimizer state, so that both fit in memory. On a GPU,
peak memory is measured during a step. On a CPU, peak memory is measured in a new process, which
builds one contender and its optimizer, and takes two steps.
"""

import argparse
import copy
import functools
import itertools

import torch
from torch import Tensor

from benchmarks.captioners import hf_captioner, our_captioner, random_images
from benchmarks.measure import Cases, Work, compare
from benchmarks.objective import MIXTURE, SMOOTHING
from BLIP import BlipCaptioner
from smile import Objective

ROUNDS = 3
OURS, OURS_SMILE, COMPILED = "ours", "ours, MLE + SMILE", "ours, compiled"
OURS_5, THEIRS = "ours, 5 captions an image", "transformers"
CPU_BATCH, GPU_BATCH = 4, 32
TOKENS = (20, 27, 33, 40)  # lengths of captions in tokens, including prompt and end token
CPU = torch.device("cpu")


def random_captions(tiny: bool, num_images: int, per_image: int) -> list[list[str]]:
    """Return `per_image` random captions for each image. Their lengths cycle through TOKENS."""
    generator, lengths = torch.Generator().manual_seed(0), itertools.cycle(TOKENS)

    # A caption consists of words w8, w9, ... of the dummy vocabulary. The prompt and the end token
    # take 5 of its tokens.
    def caption():
        ids = torch.randint(8, 60 if tiny else 30522, (next(lengths) - 5,), generator=generator)
        return " ".join(f"w{i}" for i in ids.tolist())

    return [[caption() for _ in range(per_image)] for _ in range(num_images)]


class Training:
    """Training steps of our captioner and of transformers'. Both captioners share parameters.

    tiny: whether sizes are tiny. with_peer: whether transformers' captioner is built, too.
    """

    def __init__(self, tiny: bool, with_peer: bool, device: torch.device = CPU):
        self.tiny, self.device = tiny, device
        self.batch = GPU_BATCH if device.type == "cuda" and not tiny else CPU_BATCH
        self.ours = our_captioner(tiny).train().to(device)
        self.theirs = hf_captioner(self.ours, share=True).train().to(device) if with_peer else None
        # Our runs use the fused AdamW. Users of transformers get torch's default.
        settings = {"lr": 1e-5, "weight_decay": 0.05}
        self.our_optimizer = torch.optim.AdamW(self.ours.parameters(), fused=True, **settings)
        self.their_optimizer = torch.optim.AdamW(self.ours.parameters(), **settings)
        self.their_optimizer.state = self.our_optimizer.state

    @functools.cached_property
    def compiled(self) -> BlipCaptioner:
        """A copy of our captioner, compiled as by `compile: true`. It shares the parameters."""
        shared = (*self.ours.parameters(), *self.ours.buffers(), self.ours.tokenizer)
        captioner = copy.deepcopy(self.ours, {id(value): value for value in shared})
        captioner.compile_parts()
        return captioner

    def loss(self, contender: str, image: Tensor, texts: list[list[str]]) -> Tensor:
        """Return the loss of a contender.

        image: (B, 3, S, S). texts: a list of captions for each image. The loss of transformers is
        MLE, the only objective that it has, on the tokens of our tokeniser.
        """
        ours = self.ours
        if contender != THEIRS:
            return (self.compiled if contender == COMPILED else ours)(image, texts).loss
        tokens, mask = ours.tokenizer.encode([ours.prompt + t for (t,) in texts], ours.max_tokens)
        labels = tokens.masked_fill(mask == 0, -100)
        labels[:, : len(ours.prompt_ids)] = -100
        batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
        batch = {name: value.to(self.device) for name, value in batch.items()}
        return self.theirs(pixel_values=image, **batch).loss

    def step(self, contender: str, autocast: bool) -> Work:
        """Return a function that takes one step of a contender. autocast: whether to use bf16."""
        image = random_images(self.ours, self.batch).to(self.device)
        texts = random_captions(self.tiny, self.batch, 5 if contender == OURS_5 else 1)
        optimizer = self.their_optimizer if contender == THEIRS else self.our_optimizer
        objective = Objective(MIXTURE if contender == OURS_SMILE else "mle", SMOOTHING)

        def call():
            model = self.compiled if contender == COMPILED else self.ours
            model.text_decoder.objective = objective
            with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
                loss = self.loss(contender, image, texts)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        return call


def build_training(contender: str, tiny: bool, autocast: bool) -> Work:
    """Return the work that measures memory on a CPU: build the contender and take two steps."""

    def call():
        step = Training(tiny, contender == THEIRS).step(contender, autocast)
        step()  # creates the optimizer's state
        step()

    return call


def cases(options: argparse.Namespace) -> Cases:
    """Return cases for bf16, fp32 and, on a GPU, compilation. The slowest, compilation, is last."""
    training = functools.cache(lambda: Training(options.quick, True, options.device))

    def measure(*further, autocast):
        works = {
            name: training().step(name, autocast) for name in (OURS, OURS_SMILE, *further, THEIRS)
        }
        builder = functools.partial(build_training, tiny=options.quick, autocast=autocast)
        items = (training().batch, "images")
        return compare(works, [THEIRS], options.rounds, items, builder)

    rows = {"step, bf16 autocast": lambda: measure(OURS_5, autocast=True)}
    if not options.quick:
        rows["step, fp32"] = lambda: measure(autocast=False)
    if options.device.type == "cuda":
        rows["step, bf16, compiled"] = lambda: measure(COMPILED, autocast=True)
    return rows
