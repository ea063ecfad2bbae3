"""Reranks captions: generates several candidates per image, scores them and sorts them.

A scorer is a function of a `Reranker`, the captioner's preprocessed images (B, 3, S, S), the same
images encoded by the captioner, and k candidates for each image. It returns scores (B, k); a higher
score is better.
"""

import hashlib
from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioning.data.randomness import derived_seed
from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import PREFIX
from captioning.metrics.itm import ItmScorer
from decoding import DecodingSettings, Generated
from decoding.interface import caption_lengths
from decoding.rerank import Reranking, rerank

MAX_CAPTIONS = 64  # the most captions whose likelihoods are computed in one batch


class Reranker:
    """Generates candidate captions, scores them and sorts them.

    captioner: its images are tensors. The constructor raises UserError if the scorer's model cannot
    be loaded.
    """

    def __init__(self, captioner: nn.Module, reranking: Reranking, device: torch.device):
        self.captioner, self.reranking = captioner, reranking
        self.model = load_model(reranking, device)
        self.scorer = SCORERS[reranking.rerank]

    def generate_details(self, image: Tensor, settings: DecodingSettings) -> Generated:
        """Return the best candidates of each image, with their `rerank_scores`."""
        return self.generate_from(image, self.captioner.encode(image), settings)

    @torch.inference_mode()
    def generate_from(self, image: Tensor, encoded: Any, settings: DecodingSettings) -> Generated:
        """Like `generate_details`, for images that are already encoded."""
        reranking, seeds = self.reranking, None
        if reranking.candidates == "samples":
            seeds = image_seeds(image, reranking.seed)
        settings = reranking.candidate_settings(settings, seeds)
        candidates = self.captioner.generate_from(encoded, settings)
        scores = self.scorer(self, image, encoded, candidates)
        return rerank(candidates, scores.to(candidates.scores.device), reranking.num_return)


@lru_cache(maxsize=1)
def load_model(reranking: Optional[Reranking], device: torch.device) -> Any:
    """Return the scorer's model; None if it has none. Raises UserError.

    Programs also call this before they load a captioner, so that errors come early. The model is
    kept for the `Reranker`, because a training run builds one for each evaluation.
    """
    model_class = MODELS.get(reranking.rerank) if reranking else None
    return model_class and model_class(reranking.model, device)


def image_seeds(image: Tensor, seed: int) -> tuple[int, ...]:
    """Return a seed for each preprocessed image (B, ...), derived from its pixels and `seed`.

    With these seeds, the candidates of an image do not depend on the other images of a batch.
    """
    digests = [hashlib.blake2b(pixels.numpy().tobytes(), digest_size=8) for pixels in image.cpu()]
    return tuple(
        derived_seed("candidates", seed, int(digest.hexdigest(), 16)) for digest in digests
    )


def mutual_information(
    reranker: Reranker, image: Tensor, encoded: Any, candidates: Generated
) -> Tensor:
    """Score a caption y by log p(y | image) - rerank_weight * log p(y | null image).

    The captioner that generated the candidates computes both probabilities. With weight 1, the
    score is the mutual information of caption and image (Li et al. 2016, arXiv 1510.03055).
    """
    captioner, ids = reranker.captioner, candidates.token_ids
    if reranker.reranking.candidates == "samples":
        # Scores of sampled captions are mean log-probabilities per token, without penalties, so
        # that the score times the caption's length is log p(y | image).
        own = candidates.scores if candidates.own_scores is None else candidates.own_scores
        prompt_length = captioner.prompt_ids.size(-1)
        with_image = own * caption_lengths(ids, prompt_length, captioner.tokenizer.end)
    else:
        rows = (slice(n, n + 1) for n in range(len(ids)))
        with_image = [captioner.log_likelihoods(encoded[row], ids[row]) for row in rows]
        with_image = torch.cat(with_image).double().sum(-1)
    null = captioner.encode_null(ids.device)
    # All captions are scored as captions of one image, the null image.
    batches = ids.flatten(0, 1).unsqueeze(0).split(MAX_CAPTIONS, dim=1)
    without = torch.cat([captioner.log_likelihoods(null, batch) for batch in batches], dim=1)
    without = without.double().sum(-1).view_as(with_image)
    return with_image - reranker.reranking.rerank_weight * without


def clip_similarity(
    reranker: Reranker, image: Tensor, encoded: Any, candidates: Generated
) -> Tensor:
    """Score a caption by the cosine similarity of the embeddings of image and caption.

    The embeddings are those of CLIP or SigLIP 2, which gets the captioner's preprocessed image,
    resized to its input size. CLIPScore is proportional to this cosine.
    """
    clip = reranker.model
    captions = [PREFIX + text for group in candidates.captions for text in group]
    with torch.autocast(clip.device.type, enabled=False):
        size = (clip.image_size, clip.image_size)
        images = F.interpolate(image.float(), size, mode="bicubic", antialias=True)
        images = clip.image_features(clip.renormalise(images))
        texts = clip.text_features(captions).view(len(image), -1, images.size(1))
    return (texts * images.unsqueeze(1)).sum(-1)


def match_probability(
    reranker: Reranker, image: Tensor, encoded: Any, candidates: Generated
) -> Tensor:
    """Score a caption by the probability that BLIP's image-text matching model gives to a match.

    The model gets the captioner's preprocessed image, resized to the model's input size.
    """
    with torch.autocast(reranker.model.device.type, enabled=False):
        return reranker.model.scores(image, candidates.captions)


SCORERS = {"mmi": mutual_information, "clip": clip_similarity, "itm": match_probability}
MODELS = {"clip": Clip, "itm": ItmScorer}
