"""Measures a training step of our BLIP and of transformers' BLIP.

    bash scripts/benchmark.sh training [--quick]

Both have the same sizes, initial weights, captions and precision. A step is forward, backward and
AdamW, with dropout.
"""

import argparse
import functools
import itertools

import torch
from torch import Tensor, nn

from benchmarks.captioners import SMOOTHING, VOCAB_SIZE, hf_captioner, our_captioner, random_images
from benchmarks.measure import Cases, Row, compare
from BLIP import BlipCaptioner
from smile import Objective

ROUNDS = 3
MIXTURE = {"mle": 0.01, "smile": 0.99}
TOKENS = (20, 27, 33, 40)  # lengths of captions in tokens, including prompt and end token


def random_captions(tiny: bool, num_images: int, per_image: int = 1) -> list[list[str]]:
    """Return `per_image` random captions for each image. Their lengths cycle through TOKENS."""
    generator, lengths = torch.Generator().manual_seed(0), itertools.cycle(TOKENS)

    def caption():
        count = next(lengths) - 5  # the prompt and the end token take 5 tokens
        ids = torch.randint(8, VOCAB_SIZE[tiny], (count,), generator=generator)
        return " ".join(f"w{i}" for i in ids.tolist())

    return [[caption() for _ in range(per_image)] for _ in range(num_images)]


def their_loss(ours: BlipCaptioner, theirs: nn.Module, image: Tensor, texts: list) -> Tensor:
    """Return transformers' loss, MLE, on the tokens of our tokenizer.

    image: (B, 3, S, S). texts: a list of one caption for each image.
    """
    tokens = ours.tokenizer.encode([ours.prompt + t for (t,) in texts], ours.max_tokens)
    mask = (tokens != ours.tokenizer.pad).long()
    labels = tokens.masked_fill(mask == 0, -100)
    labels[:, : len(ours.prompt_ids)] = -100
    tokens, mask, labels = (x.to(image.device) for x in (tokens, mask, labels))
    return theirs(image, tokens, attention_mask=mask, labels=labels).loss


def cases(options: argparse.Namespace) -> Cases:
    """Return cases for bf16, fp32 and, on a GPU, compilation. The slowest, compilation, is last."""
    tiny, device = options.quick, options.device
    batch = 32 if device.type == "cuda" and not tiny else 4
    texts, texts_of_5 = random_captions(tiny, batch), random_captions(tiny, batch, 5)

    def with_optimizer(model, fused=True):
        model.train().to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.05, fused=fused)

    @functools.cache
    def models():
        ours = our_captioner(tiny)
        # Our runs use the fused AdamW. Users of transformers get torch's default.
        return with_optimizer(ours), with_optimizer(hf_captioner(ours), fused=None)

    def measure(autocast: bool, five: bool = False, compiled: bool = False) -> Row:
        (ours, our_optimizer), (theirs, their_optimizer) = models()
        image = random_images(ours, batch).to(device)

        def step(optimizer, loss_of):
            def call():
                with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                    loss = loss_of()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                return loss.item()

            return call

        def our_step(objective="mle", texts=texts, model=ours, optimizer=our_optimizer):
            objective = Objective(objective, SMOOTHING)

            def loss():
                model.text_decoder.objective = objective
                return model(image, texts).loss

            return step(optimizer, loss)

        works = {"ours": our_step(), "ours, MLE + SMILE": our_step(MIXTURE)}
        if five:
            works["ours, 5 captions an image"] = our_step(texts=texts_of_5)
        if compiled:
            copy, optimizer = with_optimizer(our_captioner(tiny))
            copy.compile_parts()
            works["ours, compiled"] = our_step(model=copy, optimizer=optimizer)
        peer = step(their_optimizer, lambda: their_loss(ours, theirs, image, texts))
        works["transformers"] = peer
        return compare(works, ["transformers"], options.rounds, (batch, "images"))

    rows = {"step, bf16 autocast": lambda: measure(True, five=True)}
    if not tiny:
        rows["step, fp32"] = lambda: measure(False)
    if device.type == "cuda":
        rows["step, bf16, compiled"] = lambda: measure(True, compiled=True)
    return rows
