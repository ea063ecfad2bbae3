"""Reranking: of several candidates of a caption, the one with the highest score.

Shapes: B images, k candidates of each.
"""

import dataclasses
from typing import Any, Optional

import torch
from torch import Tensor

from decoding.interface import DecodingSettings, Generated


@dataclasses.dataclass(frozen=True)
class Reranking:
    """How candidates are generated and scored. The names are those of the configuration keys.

    rerank: the name of a reranker. rerank_weight: of log p(y | null); None for a reranker without
    it. Samples depend on `seed` and the image only. model: the model that scores candidates, a
    file, checkpoint or hub id; None for a reranker without one. num_return: captions of an image
    that are returned.

    Raises ValueError if there are fewer candidates than that.
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

    def settings(
        self, settings: DecodingSettings, seeds: Optional[tuple[int, ...]] = None
    ) -> DecodingSettings:
        """The settings that generate the candidates. Raises ValueError."""
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

    def record(self) -> dict[str, Any]:
        """What is recorded of it beside a caption."""
        names = ("rerank", "candidates", "rerank_weight")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def expected_similarity(similarity: Tensor) -> Tensor:
    """The mean similarity of each candidate to the others, (B, k), from similarities (B, k, k).

    The highest is the candidate of minimum Bayes risk (Eikema and Aziz 2020, arXiv 2005.10283).
    """
    own = similarity.diagonal(dim1=-2, dim2=-1)
    return (similarity.sum(-1) - own) / (similarity.size(-1) - 1)


def reranked(generated: Generated, scores: Tensor, num_return: int) -> Generated:
    """The `num_return` candidates with the highest scores (B, k), the highest first.

    Of candidates with equal scores the earlier one comes first. One whose score is not a number
    comes last.
    """
    scores = scores.double()
    comparable = scores.where(~scores.isnan(), torch.tensor(-torch.inf).to(scores))
    order = comparable.sort(dim=1, descending=True, stable=True).indices[:, :num_return]
    captions = [
        [group[place] for place in places]
        for group, places in zip(generated.captions, order.tolist())
    ]
    rows = order.unsqueeze(2).expand(-1, -1, generated.token_ids.size(2))
    own = generated.own_scores
    return Generated(
        captions,
        generated.token_ids.gather(1, rows),
        generated.scores.gather(1, order),
        None if own is None else own.gather(1, order),
        scores.gather(1, order),
    )
