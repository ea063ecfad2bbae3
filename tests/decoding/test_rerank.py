"""Reranked candidates against plain loops, and samples that depend on their own seed."""

import pytest
import torch

from decoding import DecodingSettings, Generated, decode
from decoding.rerank import Reranking, rerank
from decoding.sampling import draw_by_inverse
from tests.decoding.references import markov

END, PAD = 1, 0


def test_the_best_candidates_come_first():
    ids = torch.arange(6).view(1, 3, 2)
    generated = Generated([["a", "b", "c"]], ids, torch.tensor([[-1.0, -2.0, -3.0]]))
    found = rerank(generated, torch.tensor([[0.5, 2.0, 0.5]]), 3)
    assert found.captions == [["b", "a", "c"]]  # equal scores stay in their order
    assert found.token_ids.tolist() == [[[2, 3], [0, 1], [4, 5]]]
    assert found.scores.tolist() == [[-2, -1, -3]] and found.rerank_scores.tolist() == [
        [2, 0.5, 0.5]
    ]
    assert rerank(generated, torch.tensor([[torch.nan, 1.0, 2.0]]), 3).captions == [["c", "b", "a"]]
    assert rerank(generated, torch.tensor([[0.0, 1.0, 2.0]]), 1).captions == [["c"]]


def test_samples_depend_on_their_own_seed():
    (_, step), prompts = markov(), torch.tensor([[3], [4], [5]])
    settings = {"sample": True, "num_return": 4, "max_length": 9, "min_length": 0, "top_p": 1.0}
    whole = decode(step, prompts, END, PAD, DecodingSettings(**settings, seeds=(7, 8, 9)))
    for row in range(3):
        chosen = DecodingSettings(**settings, seeds=(7 + row,))
        alone = decode(step, prompts[row : row + 1], END, PAD, chosen)
        width = alone.token_ids.size(2)
        assert torch.equal(whole.token_ids[row, :, :width], alone.token_ids[0])
        assert torch.equal(whole.scores[row], alone.scores[0])
    state = torch.random.get_rng_state()
    other = decode(step, prompts, END, PAD, DecodingSettings(**settings, seeds=(1, 2, 3)))
    assert not torch.equal(other.scores, whole.scores)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_inverted_probabilities_are_samples():
    p = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    found = draw_by_inverse(p.expand(20000, -1), torch.rand(20000).double()).bincount(minlength=6)
    torch.testing.assert_close(found / 20000, p, atol=0.015, rtol=0)
    assert not found[p == 0].any()
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw_by_inverse(p.expand(2, -1), ends).tolist() == [1, 4]
    assert draw_by_inverse(torch.full((1, 6), torch.nan), torch.tensor([0.5]).double()) < 6


def test_candidates_are_samples_or_beams_of_the_settings():
    grouped = DecodingSettings(num_beams=4, num_beam_groups=2, diversity_penalty=0.5, top_k=7)
    samples = Reranking("mmi", num_candidates=6).candidate_settings(grouped, (1, 2))
    assert samples == DecodingSettings(
        sample=True, num_return=6, num_beams=4, top_k=7, seeds=(1, 2)
    )
    beams = Reranking("mmi", num_candidates=6, candidates="beams").candidate_settings(grouped)
    assert (beams.num_beams, beams.num_return, beams.num_beam_groups) == (6, 6, 2)
    with pytest.raises(ValueError, match="num_return is 3 with num_candidates 2"):
        Reranking("mmi", num_candidates=2, num_return=3)
