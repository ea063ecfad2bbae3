"""Invariants of any search and sampling, also in a batch.

Ranges: vocabularies of 2 to 12 words with the end and the padding anywhere among them, at the same
place too; 1 to 4 prompts of 1 to 3 tokens; up to 8 tokens more, 1 to 6 beams; logits normal times
0 (all equal) to 100, of float32, bfloat16 and float16, some of them -inf; any penalties.
"""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from decoding import DecodingSettings, decode
from tests.fuzz.examples import fuzzed


class Table:
    """Logits that a table gives for the last two tokens, as a step with a cache."""

    def __init__(self, vocabulary, seed, scale, dtype, forbidden=()):
        generator = torch.Generator().manual_seed(seed)
        shape = (vocabulary, vocabulary, vocabulary)
        self.logits = (scale * torch.randn(shape, generator=generator)).to(dtype)
        self.logits[..., list(forbidden)] = float("-inf")

    def step(self):
        before = {}

        def call(tokens, rows):
            b, k, n = tokens.shape
            flat = tokens.flatten(0, 1)
            if n == 1 and rows is None:
                previous = flat[:, 0]
            elif n == 1:
                previous = before["last"][rows.flatten()]
            else:
                previous = flat[:, -2]
            before["last"] = flat[:, -1]
            return self.logits[previous, flat[:, -1]].view(b, k, -1)

        return call


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
    table = Table(vocabulary, draw(st.integers(0, 2**31)), scale, dtype, forbidden)
    assume(set(range(vocabulary)) - forbidden - {end})  # else no word is allowed before min_length
    pad = draw(words if sample or beams == 1 else words | st.just(99))  # sampling reads it
    return table, prompts, end, pad, forbidden, chosen


@fuzzed(160)
@given(searches())
def test_any_search_keeps_its_invariants(search):
    table, prompts, end, pad, forbidden, chosen = search
    torch.manual_seed(0)
    ids, scores = decode(table.step(), prompts, end, pad, chosen)
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
        alone, of_alone = decode(table.step(), prompts[number, None], end, pad, chosen)
        width = alone.size(2)
        assert torch.equal(ids[number, :, :width], alone[0])
        assert (ids[number, :, width:] == pad).all()
        assert torch.equal(scores[number], of_alone[0])
