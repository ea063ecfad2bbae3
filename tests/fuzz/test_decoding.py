"""Invariants of any search and sampling, also in a batch.

Ranges: vocabularies of 2 to 12 words with the end and the padding anywhere among them, at the same
place too; 1 to 4 prompts of 1 to 3 tokens; up to 8 tokens more, 1 to 6 beams; logits normal times
0 (all equal) to 100, of float32, bfloat16 and float16, some of them -inf; any penalties.
"""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from decoding import DecodingSettings
from decoding.search import decode
from tests.decoding.references import PrefixModel, uncached
from tests.fuzz.examples import fuzzed


@st.composite
def searches(draw):
    vocabulary = draw(st.integers(2, 12))
    words = st.integers(0, vocabulary - 1)
    length = draw(st.integers(1, 3))
    row = st.lists(words, min_size=length, max_size=length)
    prompts = torch.tensor(draw(st.lists(row, min_size=1, max_size=4)))
    max_length = length + draw(st.integers(1, 8))
    beams, sample = draw(st.integers(1, 6)), draw(st.booleans())
    chosen = DecodingSettings(
        num_beams=beams,
        num_return=draw(st.integers(1, 6 if sample else beams)),
        max_length=max_length,
        min_length=draw(st.integers(0, max_length)),
        length_penalty=draw(st.floats(-2, 2)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.1, 0.5, 10.0])),
        sample=sample,
        top_p=draw(st.floats(0.01, 1)),
        top_k=draw(st.integers(0, 15)),
        temperature=draw(st.sampled_from([0.01, 0.5, 1.0, 100.0])),
    )
    end = draw(words)
    forbidden = draw(st.sets(words, max_size=vocabulary - 2))
    scale = draw(st.sampled_from([0.0, 1.0, 100.0]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    model = PrefixModel(vocabulary, draw(st.integers(0, 2**31)), end=end, ends=0.0)

    def logits(tokens):
        logits = (scale * model.logits(tokens)).to(dtype)
        return logits.index_fill(1, torch.tensor([*forbidden], dtype=int), float("-inf"))

    assume(set(range(vocabulary)) - forbidden - {end})  # else no word is allowed before min_length
    pad = draw(words if sample or beams == 1 else words | st.just(99))  # sampling reads it
    return logits, prompts, end, pad, forbidden, chosen


@fuzzed(160)
@given(searches())
def test_any_search_keeps_its_invariants(search):
    logits, prompts, end, pad, forbidden, chosen = search
    torch.manual_seed(0)
    ids, scores = decode(uncached(logits), prompts, end, pad, chosen)
    start = prompts.size(1)
    assert ids.shape[:2] == scores.shape == (len(prompts), chosen.num_return)
    assert start < ids.size(2) <= chosen.max_length and ids.dtype == torch.int64
    for prompt, rows, of_rows in zip(prompts.tolist(), ids.tolist(), scores.tolist()):
        assert chosen.sample or of_rows == sorted(of_rows, reverse=True)
        for row in rows:
            assert row[:start] == prompt
            words = row[start:]
            if end in words:
                words, rest = words[: words.index(end)], words[words.index(end) + 1 :]
                assert set(rest) <= {pad} and start + len(words) >= chosen.min_length
            assert len(words) <= chosen.max_length - start
        best = rows[0][start:]
        best = best[: best.index(end)] if end in best else best
        assert not forbidden & set(best) and torch.tensor(of_rows[0]).isfinite()
    for number in range(0 if chosen.sample else len(prompts)):
        alone, of_alone = decode(uncached(logits), prompts[number, None], end, pad, chosen)
        width = alone.size(2)
        assert torch.equal(ids[number, :, :width], alone[0])
        assert (ids[number, :, width:] == pad).all()
        assert torch.equal(scores[number], of_alone[0])
