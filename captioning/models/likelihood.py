"""Computes the likelihood of human captions under a captioner, at several temperatures."""

from collections.abc import Iterable, Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.dataset import preprocess_caption
from captioning.data.loader import on_device
from captioning.models.generation import build_image_loader
from captioning.runtime.progress import progress

# From 1/4 to 4, with eight temperatures per doubling. `find_minimum` interpolates between them, so
# that the result is accurate to 0.001.
TEMPERATURES = [2 ** (n / 8) for n in range(-16, 17)]
UNSCALED = TEMPERATURES.index(1.0)


@torch.inference_mode()
def likelihood(
    captioner: nn.Module, samples: Sequence[Sample], config: Config, device: torch.device
) -> tuple[int, list[float]]:
    """Return the likelihood of all captions of `samples`: the number of tokens, and their nll.

    The nll is the mean negative log-likelihood of a labelled token, in nats, at each of
    TEMPERATURES, without label smoothing.
    """
    loader, _ = build_image_loader(samples, config)
    sums = torch.zeros(1 + len(TEMPERATURES), dtype=torch.float64)
    with closing(loader), progress(len(samples), "likelihood of captions") as bar:
        for batch in on_device(loader, device):
            # One by one, because images may differ in the number of captions.
            for row, (index, prompt) in enumerate(zip(batch["index"], batch["prompt"])):
                texts = preprocess_captions(samples[index], config)
                image = batch["image"][row : row + 1]
                logits, labels = captioner.predictions(image, [texts], [prompt])
                logits = logits.float().mT  # (R, V, N)
                nll = [F.cross_entropy(logits / t, labels, reduction="sum") for t in TEMPERATURES]
                sums += torch.stack([(labels != -100).sum(), *nll]).double().cpu()
                bar.update(1)
    return int(sums[0]), (sums[1:] / sums[0].clamp(min=1)).tolist()


def find_minimum(values: Sequence[float]) -> tuple[float, float]:
    """Return (temperature, value) at the minimum of `values`.

    values: the negative log-likelihood at each of TEMPERATURES. A parabola in log(temperature)
    through the lowest value and its two neighbours interpolates the minimum. The temperature
    divides the logits (Guo et al. 2017, arXiv 1706.04599).
    """
    middle = min(range(1, len(values) - 1), key=values.__getitem__)
    three = slice(middle - 1, middle + 2)
    x = np.log(TEMPERATURES[three])
    fine = np.linspace(x[0], x[-1], 1001)
    curve = np.polyval(np.polyfit(x, values[three], deg=2), fine)
    return np.exp(fine[curve.argmin()]).item(), curve.min().item()


def unigram_nll(
    captioner: nn.Module, training: Sequence[Sample], samples: Sequence[Sample], config: Config
) -> float:
    """Return the mean negative log-likelihood of captions under a unigram model, in nats per token.

    - training: the samples from whose captions the unigram model counts tokens, with add-one
      smoothing
    - samples: the samples whose captions are evaluated
    - captioner: has the tokenizer
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
        labels = tokenizer.encode(texts, config.max_tokens)[:, len(captioner.prompt_ids) :]
        counts += torch.bincount(labels[labels != tokenizer.pad], minlength=len(tokenizer))
    return counts


def preprocess_captions(sample: Sample, config: Config) -> list[str]:
    return [preprocess_caption(text, config.max_words) for text in sample.captions]
