"""Computes the likelihood of human captions under a captioner, at several temperatures."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.dataset import preprocess_caption
from captioning.data.loader import Prefetcher
from captioning.models.generation import build_image_loader
from captioning.models.prompts import prompt_is_question
from captioning.runtime.progress import progress
from smile import Objective, smile_loss

# From 1/4 to 4, with eight temperatures per doubling. `find_minimum` interpolates between them, so
# that the result is accurate to 0.001.
TEMPERATURES = [2 ** (n / 8) for n in range(-16, 17)]
UNSCALED = TEMPERATURES.index(1.0)


class Likelihood(NamedTuple):
    """The likelihood of captions.

    tokens: the number of labelled tokens. nll: the negative log-likelihood at each of TEMPERATURES.
    smile: the SMILE loss at temperature 1. nll and smile are means over labelled tokens, in nats.
    """

    tokens: int
    nll: list[float]
    smile: float


@torch.inference_mode()
def likelihood(
    captioner: nn.Module, samples: Sequence[Sample], config: Config, device: torch.device
) -> Likelihood:
    """Return the likelihood of all captions of `samples`.

    The losses are computed without label smoothing and without first-token MLE.
    """
    loader, _ = build_image_loader(samples, config)
    sums = torch.zeros(2 + len(TEMPERATURES), dtype=torch.float64)
    with progress(len(samples), "likelihood of captions") as bar:
        for batch in Prefetcher(loader, device):
            image = batch["image"]
            texts = [preprocess_captions(samples[index], config) for index in batch["index"]]
            # The captioner needs the same number of captions for each image of a batch: split the
            # batch by this number.
            for count in {len(group) for group in texts}:
                rows = [n for n, group in enumerate(texts) if len(group) == count]
                prompts = [batch["prompt"][n] for n in rows]
                if prompt_is_question(config) or not any(prompts):
                    prompts = None
                sums += _sum_losses(captioner, image[rows], [texts[n] for n in rows], prompts)
            bar.update(len(texts))
    _, smile, *nll = (sums / sums[0].clamp(min=1)).tolist()
    return Likelihood(int(sums[0]), nll, smile)


def _sum_losses(
    captioner: nn.Module, image: Tensor, texts: list[list[str]], prompts: Optional[list]
) -> Tensor:
    """Return sums over the tokens of captions, float64 (2 + T,).

    They are, in this order: the number of tokens, the SMILE loss, and the negative log-likelihood
    at each of the T TEMPERATURES. texts, prompts: see `Captioner.predictions`.
    """
    # A captioner whose prompt is a question has no argument `prompts`.
    arguments = {} if prompts is None else {"prompts": prompts}
    logits, labels = captioner.predictions(image, texts, **arguments)
    losses = [smile_loss(logits, labels, reduction="sum")]
    mle = Objective("mle")
    losses += [mle(logits / t, labels, reduction="sum").loss for t in TEMPERATURES]
    return torch.stack([(labels != -100).sum(), *losses]).double().cpu()


def find_minimum(values: Sequence[float]) -> tuple[float, float]:
    """Return (temperature, value) at the minimum of `values`.

    values: the negative log-likelihood at each of TEMPERATURES. A parabola in log(temperature)
    through the lowest value and its two neighbours interpolates the minimum. The temperature
    divides the logits (Guo et al. 2017, arXiv 1706.04599).
    """
    middle = min(range(1, len(values) - 1), key=lambda n: values[n])
    before, center, after = values[middle - 1 : middle + 2]
    curvature = before - 2 * center + after
    shift = max(-1.0, min(1.0, (before - after) / (2 * curvature))) if curvature > 0 else 0.0
    ratio = TEMPERATURES[middle + 1] / TEMPERATURES[middle]
    value = center + shift * (after - before) / 2 + shift**2 * curvature / 2
    return TEMPERATURES[middle] * ratio**shift, value


def unigram_nll(
    captioner: nn.Module, training: Sequence[Sample], samples: Sequence[Sample], config: Config
) -> float:
    """Return the mean negative log-likelihood of captions under a unigram model, in nats per token.

    training: the samples from whose captions the unigram model counts tokens, with add-one
    smoothing. samples: the samples whose captions are evaluated. captioner: has the tokenizer.
    """
    logprobs = (1 + _count_tokens(captioner, training, config)).log()
    logprobs -= logprobs.logsumexp(0)
    counts = _count_tokens(captioner, samples, config)
    return -(counts * logprobs).sum().item() / counts.sum().item()


def _count_tokens(captioner: nn.Module, samples: Iterable[Sample], config: Config) -> Tensor:
    """Return how often each token of the vocabulary is a label, float64 (V,)."""
    tokenizer = captioner.tokenizer
    counts = torch.zeros(len(tokenizer), dtype=torch.float64)
    for sample in samples:
        texts = [captioner.prompt + text for text in preprocess_captions(sample, config)]
        ids, mask = tokenizer.encode(texts, config.max_tokens)
        mask[:, : len(captioner.prompt_ids)] = 0
        counts += torch.bincount(ids[mask.bool()], minlength=len(tokenizer))
    return counts


def preprocess_captions(sample: Sample, config: Config) -> list[str]:
    return [preprocess_caption(text, config.max_words) for text in sample.captions]
