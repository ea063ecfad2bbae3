"""The likelihood of human captions under a captioner, at several temperatures."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data import Prefetcher, Sample, preprocess_caption
from captioning.models.generation import images_of
from captioning.models.prompts import in_images
from captioning.runtime.progress import progress
from smile import mle_loss, smile_loss

# From 1/4 to 4, eight per doubling. A parabola between them finds the minimum to 0.001.
TEMPERATURES = [2 ** (n / 8) for n in range(-16, 17)]
PLAIN = TEMPERATURES.index(1.0)


class Likelihood(NamedTuple):
    """Means over labelled tokens, in nats. nll: at each of TEMPERATURES. smile: the SMILE loss.

    tokens: the number of labelled tokens.
    """

    tokens: int
    nll: list[float]
    smile: float

    @property
    def best(self) -> tuple[float, float]:
        """The temperature with the lowest negative log-likelihood, and its value."""
        return lowest(TEMPERATURES, self.nll)


@torch.inference_mode()
def likelihood(
    captioner: nn.Module, samples: Sequence[Sample], config: Config, device: torch.device
) -> Likelihood:
    """The likelihood of all captions of `samples`, without label smoothing or first-token MLE."""
    loader, _ = images_of(samples, config)
    sums = torch.zeros(2 + len(TEMPERATURES), dtype=torch.float64)
    with progress(len(samples), "likelihood of captions") as bar:
        for batch in Prefetcher(loader, device):
            image = batch["image"]
            texts = [preprocessed(samples[index], config) for index in batch["index"]]
            for count in {
                len(group) for group in texts
            }:  # images in a batch need the same number of captions
                chosen = [n for n, group in enumerate(texts) if len(group) == count]
                prompts = [batch["prompt"][n] for n in chosen]
                if in_images(config) or not any(prompts):
                    prompts = None
                sums += _sums(captioner, image[chosen], [texts[n] for n in chosen], prompts)
            bar.update(len(texts))
    _, smile, *nll = (sums / sums[0].clamp(min=1)).tolist()
    return Likelihood(int(sums[0]), nll, smile)


def _sums(
    captioner: nn.Module, image: Tensor, texts: list[list[str]], prompts: Optional[list]
) -> Tensor:
    """Sums over a batch: tokens, SMILE loss, and negative log-likelihood at each temperature."""
    given = {} if prompts is None else {"prompts": prompts}
    logits, labels = captioner.predictions(image, texts, **given)
    losses = [smile_loss(logits, labels, reduction="sum")]
    losses += [mle_loss(logits / t, labels, reduction="sum") for t in TEMPERATURES]
    return torch.stack([(labels != -100).sum(), *losses]).double().cpu()


def lowest(temperatures: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The minimum (temperature, value), interpolated by a parabola in log T.

    The parabola goes through the lowest value and its neighbours. The temperature divides logits
    (Guo et al. 2017, arXiv 1706.04599).
    """
    middle = min(range(1, len(values) - 1), key=lambda n: values[n])
    before, here, after = values[middle - 1 : middle + 2]
    bend = before - 2 * here + after
    shift = max(-1.0, min(1.0, (before - after) / (2 * bend))) if bend > 0 else 0.0
    ratio = temperatures[middle + 1] / temperatures[middle]
    value = here + shift * (after - before) / 2 + shift**2 * bend / 2
    return temperatures[middle] * ratio**shift, value


def unigram_nll(
    captioner: nn.Module, training: Sequence[Sample], samples: Sequence[Sample], config: Config
) -> float:
    """The mean negative log-likelihood of `samples` under a unigram model of the training captions.

    Uses add-one smoothing.
    """
    logprobs = (1 + _counts(captioner, training, config)).log()
    logprobs -= logprobs.logsumexp(0)
    counts = _counts(captioner, samples, config)
    return -(counts * logprobs).sum().item() / counts.sum().item()


def _counts(captioner: nn.Module, samples: Iterable[Sample], config: Config) -> Tensor:
    """How often each token is a label, float64 (V,)."""
    tokenizer = captioner.tokenizer
    counts = torch.zeros(len(tokenizer), dtype=torch.float64)
    for sample in samples:
        texts = [captioner.prompt + text for text in preprocessed(sample, config)]
        ids, mask = (
            t[:, len(captioner.prompt_ids) :] for t in tokenizer.encode(texts, config.max_tokens)
        )
        counts += torch.bincount(ids[mask.bool()], minlength=len(tokenizer))
    return counts


def preprocessed(sample: Sample, config: Config) -> list[str]:
    return [preprocess_caption(text, config.max_words) for text in sample.captions]
