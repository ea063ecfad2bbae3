"""Reranks candidate captions: keeps the candidates with the highest scores.

In shapes, B is the number of images, and k the number of candidates per image.
"""

import dataclasses
from typing import Any, Optional

import torch
from torch import Tensor

from decoding.interface import DecodingSettings, Generated


@dataclasses.dataclass(frozen=True)
class Reranking:
    """How candidates are generated and scored. Most fields have the name of a configuration key.

    - rerank: the name of a reranker.
    - candidates: "samples" or "beams".
    - rerank_weight: the weight of log p(caption | null image); None if the reranker has no such
      term.
    - seed: the seed of samples. An image's samples do not depend on other images.
    - model: the file, checkpoint or hub id of the model that scores candidates; None if the
      reranker needs no model.
    - num_return: the number of captions returned per image.

    Raises ValueError if num_return exceeds num_candidates.
    """

    rerank: str
    num_candidates: int = 20
    candidates: str = "samples"
    rerank_weight: Optional[float] = 0.5
    seed: int = 0
    model: Optional[str] = None
    num_return: int = 1

    def __post_init__(self):
        if self.num_return > self.num_candidates:
            raise ValueError(
                f"num_return is {self.num_return} with num_candidates {self.num_candidates}; raise "
                "num_candidates"
            )

    def candidate_settings(
        self, settings: DecodingSettings, seeds: Optional[tuple[int, ...]] = None
    ) -> DecodingSettings:
        """Return the decoding settings with which candidates are generated.

        settings: the user's settings. seeds: one per prompt, as in `DecodingSettings`; not used for
        beams. Raises ValueError if the settings do not allow these candidates.
        """
        count = self.num_candidates
        if self.candidates == "beams":
            return dataclasses.replace(settings, sample=False, num_beams=count, num_return=count)
        return dataclasses.replace(
            settings,
            sample=True,
            num_return=count,
            length_penalty=1.0,
            num_beam_groups=1,
            diversity_penalty=0.0,
            seeds=seeds,
        )

    def recorded_settings(self) -> dict[str, Any]:
        """Return the settings that are recorded with each caption, as {name: value}."""
        names = ("rerank", "candidates", "rerank_weight")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def rerank(generated: Generated, scores: Tensor, num_return: int) -> Generated:
    """Return the `num_return` candidates with the highest `scores` (B, k), in descending order.

    Candidates with equal scores keep their order. Candidates with score nan come last.
    """
    scores = scores.double()
    comparable = scores.where(~scores.isnan(), -torch.inf)
    order = comparable.sort(dim=1, descending=True, stable=True).indices[:, :num_return]
    captions = [
        [group[index] for index in indices]
        for group, indices in zip(generated.captions, order.tolist())
    ]
    own_scores = generated.own_scores
    return Generated(
        captions,
        generated.token_ids.take_along_dim(order.unsqueeze(2), 1),
        scores=generated.scores.gather(1, order),
        own_scores=None if own_scores is None else own_scores.gather(1, order),
        rerank_scores=scores.gather(1, order),
    )
