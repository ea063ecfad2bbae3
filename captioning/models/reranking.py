"""Reranking: generates several candidates per image, scores and sorts them."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioning.captioners.interface import Images
from captioning.config import Config
from captioning.data.randomness import derived_seed
from captioning.models.build import load_trained, trained_config
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from decoding import DecodingSettings, Generated
from decoding.guided import caption_lengths, encode_noisy
from decoding.rerank import Reranking, expected_similarity, mutual_information, reranked

MAX_ROWS = 256  # captions whose likelihoods are computed at once


class Reranker:
    """Generates captions with a captioner and a `Reranking`.

    Loads the model that scores the candidates. Raises UserError.
    """

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        self.captioner, self.reranking = captioner, reranking
        self.scorer = load(SCORERS[reranking.rerank])(captioner, reranking, device)

    def generate_details(self, image: Images, settings: DecodingSettings) -> Generated:
        """The best candidates of each image, with their `rerank_scores`."""
        return self.generate_from(image, self.captioner.encode(image), settings)

    @torch.inference_mode()
    def generate_from(self, image: Images, encoded: Any, settings: DecodingSettings) -> Generated:
        """Like `generate_details`, for images that are already encoded."""
        if not isinstance(image, Tensor):
            raise UserError("rerank is not supported by this captioner; unset it")
        seeds = None
        if self.reranking.candidates == "samples":
            seeds = image_seeds(image, self.reranking.seed)
        candidates = self.captioner.generate_from(
            encoded,
            self.reranking.settings(settings, seeds),
            encode_noisy(self.captioner, image, settings),
        )
        scores = self.scorer(image, encoded, candidates)
        return reranked(candidates, scores.to(candidates.scores.device), self.reranking.num_return)


def check_model(reranking: Optional[Reranking]) -> None:
    """Raise UserError for a model of reranking that is missing or of another kind."""
    if reranking is None or reranking.model is None:
        return
    if reranking.rerank == "clip":
        load("captioning.metrics.model_files:find_model")("clip_model", reranking.model)
    elif reranking.rerank == "itm":
        load("captioning.metrics.itm_model:check_file")(reranking.model)
    else:
        try:
            trained_config(reranking.model, None)
        except UserError as error:
            raise UserError(f"rerank_judge: {error}") from error


def image_seeds(image: Tensor, seed: int) -> tuple[int, ...]:
    """A seed for each preprocessed image (B, ...), from its values and `seed`."""
    digests = [hashlib.blake2b(each.numpy().tobytes(), digest_size=8) for each in image.cpu()]
    return tuple(
        derived_seed("candidates", seed, int.from_bytes(digest.digest(), "big"))
        for digest in digests
    )


class MutualInformation:
    """log p(y | image) - weight * log p(y | null), by the captioner that made the candidates."""

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        self.scored_by, self.weight = captioner, reranking.rerank_weight
        self.of_samples = reranking.candidates == "samples"

    def __call__(self, image: Images, encoded: Any, candidates: Generated) -> Tensor:
        count = max(1, MAX_ROWS // candidates.token_ids.size(1))
        pieces = range(0, len(candidates.token_ids), count)
        known = self._log_likelihoods(candidates) if self.of_samples else None
        scores = []
        for start in pieces:
            piece = slice(start, start + count)
            own = None if known is None else known[piece]
            scores.append(self._scores(encoded[piece], candidates.token_ids[piece], own))
        return torch.cat(scores)

    def _log_likelihoods(self, candidates: Generated) -> Tensor:
        """Of samples they are known from sampling: penalties do not change a sample's score."""
        tokens = (len(self.scored_by.prompt_ids), self.scored_by.tokenizer.end)
        lengths = caption_lengths(candidates.token_ids, *tokens)
        own = candidates.own_scores
        return (candidates.scores if own is None else own) * lengths

    def _scores(self, encoded: Any, ids: Tensor, own: Optional[Tensor]) -> Tensor:
        captioner, rows = self.scored_by, ids.flatten(0, 1).unsqueeze(0)
        if own is None:
            own = captioner.log_likelihoods(encoded, ids).double().sum(-1)
        # All rows have the same null, which is encoded once.
        null = captioner.log_likelihoods(captioner.encode_null(encoded[:1]), rows)
        return mutual_information(own, null.double().sum(-1).view_as(own), self.weight)


class Judge(MutualInformation):
    """Like `MutualInformation`, computed by another captioner. Raises UserError.

    The judge needs the same vocabulary and prompt as the captioner.
    """

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        super().__init__(captioner, reranking, device)
        config, self.scored_by = load_judge(reranking.model, device)
        self.of_samples = False  # they are another captioner's
        self.image_size = config.image_size
        _check_vocabulary(captioner, self.scored_by, reranking.model)

    def __call__(self, image: Tensor, encoded: Any, candidates: Generated) -> Tensor:
        return super().__call__(
            image, self.scored_by.encode(resized(image, self.image_size)), candidates
        )


class MinimumBayesRisk:
    """The mean CIDEr-D of a candidate and the other candidates, with equal weights of n-grams."""

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        self.similarities = load("captioning.rewards.cider:similarities")

    def __call__(self, image: Images, encoded: Any, candidates: Generated) -> Tensor:
        found = [self.similarities(captions) for captions in candidates.captions]
        return expected_similarity(torch.tensor(found, dtype=torch.float64))


class ClipScorer:
    """The cosine of CLIP's vectors of image and caption. CLIPScore is proportional to it.

    CLIP gets the captioner's preprocessed image, resized.
    """

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        self.clip = _clip(reranking.model, device)
        self.prefix = load("captioning.metrics.clipscore:PREFIX")

    def __call__(self, image: Tensor, encoded: Any, candidates: Generated) -> Tensor:
        ids, _ = self.clip.encode(
            [self.prefix + text for each in candidates.captions for text in each]
        )
        with torch.autocast(self.clip.device.type, enabled=False):
            images = self.clip.image_features(resized(image.float(), self.clip.image_size))
            captions = self.clip.text_features(ids).view(len(image), -1, images.size(1))
        return (captions * images.unsqueeze(1)).sum(-1)


class ImageTextMatching:
    """The probability by BLIP's filter that image and caption match.

    The filter gets the captioner's image, resized.
    """

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        self.itm = _itm(reranking.model, device)

    def __call__(self, image: Tensor, encoded: Any, candidates: Generated) -> Tensor:
        with torch.autocast(self.itm.device.type, enabled=False):
            return self.itm.scores(image, candidates.captions)


# A scorer is built from the captioner, the `Reranking` and the device. It is called with the
# images, their encoding and the candidates, and returns scores of the candidates (B, k).
SCORERS = {
    "mmi": f"{__name__}:MutualInformation",
    "mbr": f"{__name__}:MinimumBayesRisk",
    "clip": f"{__name__}:ClipScorer",
    "itm": f"{__name__}:ImageTextMatching",
    "judge": f"{__name__}:Judge",
}


def resized(image: Tensor, size: int) -> Tensor:
    """Resize normalised images (B, 3, S, S) to (B, 3, size, size)."""
    if image.size(-1) == size:
        return image
    return F.interpolate(image, (size, size), mode="bicubic", antialias=True)


@lru_cache(maxsize=1)
def load_judge(checkpoint: str, device: torch.device) -> tuple[Config, nn.Module]:
    config, judge = load_trained(checkpoint, None, device)
    return config, judge.requires_grad_(False)


@lru_cache(maxsize=1)
def _itm(file: str, device: torch.device) -> Any:
    return load("captioning.metrics.itm_model:ItmScorer")(file, device)


@lru_cache(maxsize=1)
def _clip(source: str, device: torch.device) -> Any:
    return load("captioning.metrics.clip:Clip")(source, device)


def _check_vocabulary(captioner: nn.Module, judge: nn.Module, name: str) -> None:
    if tokens_of(captioner) != tokens_of(judge):
        raise UserError(
            f"rerank_judge: {name} has another vocabulary than the captioner: use a judge that was "
            "trained with the same tokenizer"
        )
    if captioner.prompt_ids.tolist() != judge.prompt_ids.tolist():
        raise UserError(
            f"rerank_judge: {name} has the prompt {judge.prompt!r}, the captioner "
            f"{captioner.prompt!r}: use a judge with the same prompt"
        )


def tokens_of(captioner: nn.Module) -> Sequence[str]:
    tokenizer = captioner.tokenizer
    return [tokenizer.token(number) for number in range(len(tokenizer))]
