"""Packed rows are refused of a model that lets one text change the next, and of no other."""

import types

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import use_smile
from smile.hf.forward import TRIES
from tests.smile import hf_models
from tests.smile.hf_steps import GPT2, LLAMA, made

needs_llama = pytest.mark.skipif(LLAMA not in hf_models.HERE, reason="transformers has no Llama")
TOKENS = torch.tensor([[3, 4, 5, 6, 7, 8, 4, 5]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
BOUNDS = torch.tensor([0, 3, 8], dtype=torch.int32)
PACKED = {"input_ids": TOKENS, "labels": TOKENS, "position_ids": POSITIONS}
SINGLE = {**PACKED, "position_ids": torch.arange(TRIES)[None]}
SEEN = "lets captions of a packed row see each other"


def leaking():
    """OPT, whose attention reads no positions, or GPT-2 before any did."""
    if transformers.__version__ == "4.15.0":
        return made(GPT2).model
    sizes = {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.OPTConfig(vocab_size=24, dropout=0.0, word_embed_proj_dim=16, **sizes)
    return transformers.OPTForCausalLM(config).train()


@pytest.mark.parametrize("from_hidden", [False, True])
def test_one_text_that_changes_the_next_is_refused(from_hidden):
    model = use_smile(leaking(), from_hidden=from_hidden)
    with pytest.raises(ValueError, match=f"{type(model).__name__} {SEEN}") as error:
        model(**PACKED)
    assert "\n" not in str(error.value)


def test_a_row_of_one_text_trains_and_a_later_row_of_several_is_refused():
    model = use_smile(leaking())
    model(**SINGLE).loss.backward()
    with pytest.raises(ValueError, match=SEEN):
        model(**PACKED)


def test_a_padded_batch_tells_nothing_of_a_packed_one():
    model = use_smile(leaking())
    model(**SINGLE, attention_mask=torch.ones_like(TOKENS))
    with pytest.raises(ValueError, match=SEEN):
        model(**PACKED)


@needs_llama
def test_a_mask_that_keeps_texts_apart_is_taken_of_a_model_that_does_not():
    model = use_smile(made(LLAMA).model)
    expected = use_smile(made(LLAMA).model)(**PACKED).loss
    number = torch.tensor([[0] * 3 + [1] * 5])
    model(input_ids=TOKENS, labels=TOKENS, seq_idx=torch.zeros_like(TOKENS))
    mask = (number[:, :, None] == number[:, None]).tril()[:, None]  # (1, 1, N, N)
    loss = model(**PACKED, seq_idx=number, attention_mask=mask).loss
    torch.testing.assert_close(loss, expected)


def test_cross_entropy_alone_is_as_the_models_own():
    model = leaking()
    before = [0, 1, 3, 4, 5, 6]  # the first word of the second text does not follow
    logits = model(input_ids=TOKENS, position_ids=POSITIONS).logits[0, before]
    expected = torch.nn.functional.cross_entropy(logits, TOKENS[0, 1:][before])
    loss = use_smile(model, Objective("mle", label_smoothing=0.0))(**PACKED).loss
    torch.testing.assert_close(loss, expected)


@needs_llama
@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "places",
    [{"seq_idx": torch.tensor([[0] * 3 + [1] * 5])}, {"cu_seq_lens_q": BOUNDS, "max_length_q": 5}],
)
def test_places_that_attention_does_not_read_are_refused(kind, places):
    model = made(LLAMA).model
    model.set_attn_implementation(kind)
    use_smile(model)
    batch = {"input_ids": TOKENS, "labels": TOKENS, **places}
    with pytest.raises(ValueError, match=SEEN):
        model(**batch)
    assert model(**batch, position_ids=POSITIONS).loss > 0


def in_one_row(module, query, key, value, mask, position_ids=None, **_):
    """Attention (B, H, N, X) that finds texts as flash attention in transformers does."""
    from transformers.modeling_flash_attention_utils import _is_packed_sequence

    key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    seen = torch.ones(query.size(2), query.size(2), dtype=torch.bool).tril()
    if _is_packed_sequence(position_ids, len(query)):
        number = (position_ids == 0).cumsum(1)
        seen = seen & (number.mT == number)
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return attended.transpose(1, 2), None


@needs_llama
def test_several_packed_rows_are_refused_where_attention_sees_texts_in_one_alone(monkeypatch):
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "in_one_row", in_one_row)
    masks = ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    monkeypatch.setitem(masks, "in_one_row", flash_attention_mask)
    expected = use_smile(made(LLAMA).model)(**PACKED).loss
    model = made(LLAMA).model
    model.set_attn_implementation("in_one_row")
    use_smile(model)
    rows = {key: value.expand(2, -1) for key, value in PACKED.items()}
    for _ in range(2):
        torch.testing.assert_close(model(**PACKED).loss, expected)
        with pytest.raises(ValueError, match=SEEN):
            model(**rows)


@needs_llama
def test_places_that_are_read_tell_nothing_of_others():
    model = use_smile(made(LLAMA).model)
    model(**PACKED)
    with pytest.raises(ValueError, match=SEEN):
        model(input_ids=TOKENS, labels=TOKENS, seq_idx=torch.tensor([[0] * 3 + [1] * 5]))


def with_output(model, change):
    """The model, whose forward changes its logits by a function of them and the words."""
    own = model.forward

    def forward(self, *args, **kwargs):
        output = own(*args, **kwargs)
        output.logits = change(output.logits, kwargs["input_ids"])
        return output

    model.forward = types.MethodType(forward, model)
    return model


@needs_llama
def test_a_rounding_that_is_common_to_a_batch_is_no_leak():
    """As of 8 bits, whose scale is of all logits."""

    def of_8_bits(logits, _):
        scale = logits.abs().max().detach() / 127
        return (logits / scale).round() * scale

    model = with_output(use_smile(made(LLAMA).model), of_8_bits)
    with torch.no_grad():
        assert model(**PACKED).loss > 0


@needs_llama
def test_a_rounding_of_what_is_computed_later_alone_is_no_leak():
    """In bfloat16, of which the texts before show none: the last place differs by which it is."""
    model = use_smile(made(LLAMA).model.bfloat16())

    def rounded(logits, words):
        up = (words[:, :1] > words[:, 1:2]).view(-1, 1, 1)
        later = torch.where(up, logits[:, 8:] * (1 + 2**-8), logits[:, 8:])
        return torch.cat([logits[:, :8], later], 1)

    assert with_output(model, rounded)(**PACKED).loss.isfinite()
    leaks = use_smile(leaking().bfloat16())
    with pytest.raises(ValueError, match=SEEN):
        leaks(**PACKED)


@needs_llama
@pytest.mark.parametrize("value", [-torch.inf, torch.finfo(torch.float32).min])
def test_words_that_are_ruled_out_tell_nothing(value):
    def without_first(logits, _):
        return torch.cat([torch.full_like(logits[..., :1], value), logits[..., 1:]], 2)

    model = with_output(use_smile(made(LLAMA).model.float()), without_first)
    assert model(**PACKED).loss.isfinite()
    with pytest.raises(ValueError, match=SEEN):
        with_output(use_smile(leaking()), without_first)(**PACKED)


@needs_llama
def test_a_head_of_zeros_tells_nothing_until_it_is_trained():
    model = use_smile(made(LLAMA).model)
    torch.nn.init.zeros_(model.lm_head.weight)
    assert model(**PACKED).loss.isfinite()
    model = use_smile(leaking())
    if not hasattr(model.config, "word_embed_proj_dim"):
        pytest.skip("its head is its embedding")
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    assert model(**PACKED).loss.isfinite()
    torch.nn.init.normal_(model.lm_head.weight)
    with pytest.raises(ValueError, match=SEEN):
        model(**PACKED)


@needs_llama
def test_a_model_of_which_nothing_can_be_told_is_not_tried_for_ever():
    model = use_smile(made(LLAMA).model)
    torch.nn.init.zeros_(model.lm_head.weight)
    calls = []
    model.model.register_forward_pre_hook(lambda *_: calls.append(1))
    for _ in range(TRIES):
        model(**PACKED)
    assert len(calls) > TRIES
    calls.clear()
    model(**PACKED)
    assert len(calls) == 1


@needs_llama
def test_a_model_is_left_as_it_was():
    model = made(LLAMA).model
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.lm_head.eval()
    use_smile(model)
    losses = []
    for _ in range(2):
        torch.manual_seed(1)
        losses.append(model(**PACKED).loss)
    assert losses[0] == losses[1]
    assert model.model.training and not model.lm_head.training
    assert use_smile(model.eval())(**PACKED).loss != losses[0]  # there is dropout


BLIP2 = "Blip2ForConditionalGeneration"
PHOTOS = [
    f"{name}ForConditionalGeneration"
    for name in ("Llava", "InternVL", "Qwen2VL", "Qwen2_5_VL", "Qwen3VL")
]
# Along which axis two photos come together; words do along the second.
AXES = {"pixel_values": 0, "image_grid_thw": 0, "position_ids": -1}


def photos(name):
    """A model, two photos with their captions, and both in one row."""
    model, batch, *_ = made(name)
    patches, alone = len(batch["pixel_values"]) // 3, []
    for i in range(2):
        read = batch["attention_mask"][i].bool()
        one = {"pixel_values": batch["pixel_values"][i * patches : (i + 1) * patches]}
        for key in {"input_ids", "labels", "mm_token_type_ids"} & batch.keys():
            one[key] = batch[key][i : i + 1, read]
        places = torch.arange(int(read.sum()))[None]
        if "image_grid_thw" in batch:
            one["image_grid_thw"] = batch["image_grid_thw"][i : i + 1]
            given = {k: one[k] for k in one.keys() - {"pixel_values", "labels"}}
            places = torch.cat([places[None], model.model.get_rope_index(**given)[0]])
        alone.append({**one, "position_ids": places})
    keys = alone[0]
    return model, alone, {k: torch.cat([one[k] for one in alone], AXES.get(k, 1)) for k in keys}


@pytest.mark.parametrize("name", [name for name in PHOTOS if name in hf_models.HERE])
def test_photos_of_a_packed_row_do_not_see_each_other(name):
    """Which with a cache they do; some forwards take use_cache without naming it."""
    model, alone, row = photos(name)
    use_smile(model)
    tokens = [(one["labels"][:, 1:] != -100).sum() for one in alone]
    loss = sum(model(**one).loss * n for one, n in zip(alone, tokens)) / sum(tokens)
    torch.testing.assert_close(model(**row).loss, loss)


@pytest.mark.skipif(PHOTOS[2] not in hf_models.HERE, reason="transformers has no Qwen2-VL")
def test_photos_that_see_each_other_are_refused():
    """As by positions of time, height and width alone, in which transformers sees no texts."""
    model, _, row = photos(PHOTOS[2])
    others = {**row, "position_ids": row["position_ids"][1:]}
    use_smile(model)
    for _ in range(2):
        with pytest.raises(ValueError, match=SEEN):
            model(**others)
        model(**row)  # has those of the text too


@pytest.mark.skipif(BLIP2 not in hf_models.HERE, reason="transformers has no BLIP-2")
def test_a_model_that_takes_no_words_alone_is_not_tried():
    model, batch, *_ = made(BLIP2)
    del batch["attention_mask"]
    labels = batch["labels"]
    loss = use_smile(model)(**batch, position_ids=torch.arange(labels.size(1))[None]).loss
    assert loss.isfinite()
