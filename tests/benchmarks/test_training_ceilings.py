"""The ceilings of a training step in the smallest form: what each of the steps leaves undone."""

import pytest
import torch

from benchmarks.training_ceilings import AS_IT_IS, Ceilings


@pytest.fixture(scope="module")
def ceilings():
    torch.manual_seed(0)
    return Ceilings(tiny=True)


@pytest.fixture
def rows_seen(ceilings, monkeypatch):
    """Of each step that is taken the captions: rows, columns, and how many tokens pad nothing."""
    seen, tokenizer = [], type(ceilings.training.ours.tokenizer)
    encode = tokenizer.encode

    def spy(self, *arguments, **keywords):
        tokens, mask = encode(self, *arguments, **keywords)
        seen.append((*tokens.shape, int(mask.sum())))
        return tokens, mask

    monkeypatch.setattr(tokenizer, "encode", spy)
    return seen


def test_each_step_does_less(ceilings, rows_seen):
    works = ceilings.works(an_image=2)
    for name in (AS_IT_IS, "no padding", "no prompt"):
        works[name]()
    prompt = len(ceilings.training.ours.prompt_ids)
    assert rows_seen == [(8, 40, 240), (8, 30, 240), (8, 40 - prompt, 240 - 8 * prompt)]


@pytest.mark.parametrize(
    "name, encoder, decoder",
    [(AS_IT_IS, True, True), ("encoder frozen", False, True), ("encoder alone", True, False)],
)
def test_what_a_step_changes(ceilings, name, encoder, decoder):
    ours = ceilings.training.ours
    weights = (
        ours.visual_encoder.blocks[0].attn.qkv.weight,
        ours.text_decoder.cls["predictions"].decoder.weight,
    )
    before = [weight.detach().clone() for weight in weights]
    ceilings.works(an_image=1)[name]()
    changed = [not torch.equal(old, new) for old, new in zip(before, weights)]
    assert changed == [encoder, decoder]


def test_weights_of_the_encoder_in_16_bits(ceilings):
    before = ceilings.half.visual_encoder.blocks[0].attn.qkv.weight.detach().clone()
    ceilings.works(an_image=1)["encoder in 16 bits"]()
    after = ceilings.half.visual_encoder.blocks[0].attn.qkv.weight
    assert after.dtype == torch.bfloat16 and not torch.equal(before, after)
