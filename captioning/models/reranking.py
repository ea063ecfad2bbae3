"""Reranks captions: generates several candidates per image, scores them and sorts them."""

import hashlib
from functools import lru_cache
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioning.captioners.interface import Captioner, Images
from captioning.config import Config
from captioning.config.rerankers import RERANKERS
from captioning.data.randomness import derived_seed
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from decoding import DecodingSettings, Generated
from decoding.interface import caption_lengths
from decoding.rerank import Reranking, rerank

MAX_CAPTIONS = 256  # the most captions whose likelihoods are computed in one batch


class Scorer:
    """The base class of scorers of candidates. A higher score is better.

    The constructor loads the scorer's model, if the scorer needs one, and raises UserError. The
    subclasses omit types and shapes: the methods here document them for all scorers.
    """

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        self.captioner, self.reranking = captioner, reranking

    @classmethod
    def check(cls, model: Optional[str], config: Config) -> None:
        """Raise UserError unless the scorer's `model` suits the captioner of `config`.

        model: the name of the scorer's model; None if the scorer has none. Loads no weights.
        """

    def __call__(self, image: Tensor, encoded: Any, candidates: Generated) -> Tensor:
        """Return scores (B, k) of k candidates for each of B images.

        image: the captioner's preprocessed images (B, 3, S, S). encoded: the same images, encoded
        by the captioner.
        """
        raise NotImplementedError


class Reranker:
    """Generates candidate captions, scores them and sorts them.

    The constructor loads the scorer, and raises UserError if its model cannot be loaded.
    """

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        self.captioner, self.reranking = captioner, reranking
        self.scorer = load(RERANKERS[reranking.rerank].scorer)(captioner, reranking, device)

    def generate_details(self, image: Images, settings: DecodingSettings) -> Generated:
        """Return the best candidates of each image, with their `rerank_scores`.

        Raises UserError if the captioner does not support reranking.
        """
        return self.generate_from(image, self.captioner.encode(image), settings)

    @torch.inference_mode()
    def generate_from(self, image: Images, encoded: Any, settings: DecodingSettings) -> Generated:
        """Like `generate_details`, for images that are already encoded."""
        if not isinstance(image, Tensor):
            raise UserError("rerank is not supported by this captioner; unset it")
        seeds = None
        if self.reranking.candidates == "samples":
            seeds = image_seeds(image, self.reranking.seed)
        candidate_settings = self.reranking.candidate_settings(settings, seeds)
        candidates = self.captioner.generate_from(encoded, candidate_settings)
        scores = self.scorer(image, encoded, candidates)
        return rerank(candidates, scores.to(candidates.scores.device), self.reranking.num_return)


def with_reranking(
    captioner: Captioner, reranking: Optional[Reranking], device: torch.device
) -> Union[Captioner, Reranker]:
    """Return a `Reranker` of the captioner, or the captioner itself if `reranking` is None."""
    return captioner if reranking is None else Reranker(captioner, reranking, device)


def check_reranking(config: Config) -> None:
    """Raise UserError if the reranker's model is missing, or does not suit the captioner.

    Called before the captioner is loaded, so that the error comes early.
    """
    reranking = config.reranking()
    if reranking is not None:
        load(RERANKERS[reranking.rerank].scorer).check(reranking.model, config)


def image_seeds(image: Tensor, seed: int) -> tuple[int, ...]:
    """Return a seed for each preprocessed image (B, ...), derived from its pixels and `seed`.

    With these seeds, the candidates of an image do not depend on the other images of a batch.
    """
    digests = [hashlib.blake2b(pixels.numpy().tobytes(), digest_size=8) for pixels in image.cpu()]
    return tuple(
        derived_seed("candidates", seed, int(digest.hexdigest(), 16)) for digest in digests
    )


class MutualInformation(Scorer):
    """Scores a caption y by log p(y | image) - rerank_weight * log p(y | null image).

    The captioner that generated the candidates computes both probabilities. With weight 1, the
    score is the mutual information of caption and image (Li et al. 2016, arXiv 1510.03055).
    """

    def __call__(self, image, encoded, candidates):
        captioner, token_ids, logp, scores = self.captioner, candidates.token_ids, None, []
        if self.reranking.candidates == "samples":
            # Scores of sampled captions are mean log-probabilities per token, without penalties,
            # so that the score times the caption's length is log p(y | image).
            tokens = (captioner.prompt_ids.size(-1), captioner.tokenizer.end)
            own = candidates.scores if candidates.own_scores is None else candidates.own_scores
            logp = own * caption_lengths(token_ids, *tokens)
        null = captioner.encode_null(candidates.token_ids.device)
        count = max(1, MAX_CAPTIONS // token_ids.size(1))
        for start in range(0, len(token_ids), count):
            rows = slice(start, start + count)
            ids, images = token_ids[rows], encoded[rows]
            if logp is None:
                with_image = captioner.log_likelihoods(images, ids).double().sum(-1)
            else:
                with_image = logp[rows]
            captions = ids.flatten(0, 1).unsqueeze(0)  # as captions of one image, the null image
            without = captioner.log_likelihoods(null, captions).double().sum(-1).view_as(with_image)
            scores.append(with_image - self.reranking.rerank_weight * without)
        return torch.cat(scores)


class ClipScorer(Scorer):
    """Scores a caption by the cosine similarity of the embeddings of image and caption.

    The embeddings are those of CLIP or SigLIP 2, which gets the captioner's preprocessed image,
    resized to its input size. CLIPScore is proportional to this cosine.
    """

    @classmethod
    def check(cls, model, config):
        load("captioning.metrics.clip:check_clip")(model)

    def __init__(self, captioner, reranking, device):
        self.clip = _load_model("captioning.metrics.clip:Clip", reranking.model, device)
        self.prefix = load("captioning.metrics.clipscore:PREFIX")

    def __call__(self, image, encoded, candidates):
        captions = [self.prefix + text for group in candidates.captions for text in group]
        with torch.autocast(self.clip.device.type, enabled=False):
            images = resized(image.float(), self.clip.image_size)
            images = self.clip.image_features(self.clip.renormalise(images))
            texts = self.clip.text_features(captions).view(len(image), -1, images.size(1))
        return (texts * images.unsqueeze(1)).sum(-1)


class ImageTextMatching(Scorer):
    """Scores a caption by the probability that BLIP's image-text matching model gives to a match.

    The model gets the captioner's preprocessed image, resized to the model's input size.
    """

    @classmethod
    def check(cls, model, config):
        load("captioning.metrics.itm:ItmScorer")(model)

    def __init__(self, captioner, reranking, device):
        self.itm = _load_model("captioning.metrics.itm:ItmScorer", reranking.model, device)

    def __call__(self, image, encoded, candidates):
        with torch.autocast(self.itm.device.type, enabled=False):
            return self.itm.scores(image, candidates.captions)


def resized(image: Tensor, size: int) -> Tensor:
    """Resize normalised images (B, 3, S, S) to (B, 3, size, size)."""
    if image.size(-1) == size:
        return image
    return F.interpolate(image, (size, size), mode="bicubic", antialias=True)


# Cached, because a training run builds a `Reranker` for each evaluation.
@lru_cache(maxsize=1)
def _load_model(entry: str, source: str, device: torch.device) -> Any:
    return load(entry)(source, device)
