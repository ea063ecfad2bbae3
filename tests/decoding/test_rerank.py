"""The order of reranked candidates, and the settings of candidates."""

import pytest
import torch

from decoding import DecodingSettings, Generated
from decoding.rerank import Reranking, rerank


def test_the_best_candidates_come_first():
    ids = torch.arange(6).view(1, 3, 2)
    generated = Generated([["a", "b", "c"]], ids, torch.tensor([[-1.0, -2.0, -3.0]]))
    found = rerank(generated, torch.tensor([[0.5, 2.0, 0.5]]), 3)
    assert found.captions == [["b", "a", "c"]]  # equal scores stay in their order
    assert found.token_ids.tolist() == [[[2, 3], [0, 1], [4, 5]]]
    assert found.scores.tolist() == [[-2, -1, -3]]
    assert found.rerank_scores.tolist() == [[2, 0.5, 0.5]]
    assert rerank(generated, torch.tensor([[torch.nan, 1.0, 2.0]]), 2).captions == [["c", "b"]]


def test_candidates_are_samples_or_beams_of_the_settings():
    grouped = DecodingSettings(num_beams=4, num_beam_groups=2, diversity_penalty=0.5, top_k=7)
    samples = Reranking("mmi", num_candidates=6).candidate_settings(grouped, (1, 2))
    plain = DecodingSettings(num_beams=4, top_k=7, sample=True, num_return=6, seeds=(1, 2))
    assert samples == plain
    beams = Reranking("mmi", num_candidates=6, candidates="beams").candidate_settings(grouped)
    assert (beams.num_beams, beams.num_return, beams.num_beam_groups) == (6, 6, 2)
    with pytest.raises(ValueError, match="num_return is 3 with num_candidates 2"):
        Reranking("mmi", num_candidates=2, num_return=3)
