"""Packed rows are refused for a model that lets one text change the next, and for no other."""

import contextlib
import sys

import pytest
import torch
import transformers

from smile.hf import use_smile
from smile.hf.packing_check import MASKED, MIXED_TEXTS_ERROR, SINCE_5, refuse_leaks
from tests.smile import hf_models
from tests.smile.hf_steps import GPT2, LLAMA, from_logits_and_hidden, made, needs, one_line

TOKENS = torch.tensor([[3, 4, 5, 6, 7, 8, 4, 5]])
NUMBER = torch.tensor([[0] * 3 + [1] * 5])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
BOUNDS = torch.tensor([0, 3, 8], dtype=torch.int32)
PACKED = {"input_ids": TOKENS, "labels": TOKENS, "position_ids": POSITIONS}
SINGLE = {**PACKED, "position_ids": torch.arange(8)[None]}
SEEN = "lets captions of a packed row see each other"
VERSION = tuple(int(number) for number in transformers.__version__.split(".")[:2])
masked = pytest.mark.skipif(VERSION < (4, 53), reason="masks read no positions")


def leaking():
    """Return OPT, whose mask ignores positions, or GPT-2 of an old transformers."""
    if transformers.__version__ == "4.15.0":
        return made(GPT2).model
    sizes = {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.OPTConfig(vocab_size=24, dropout=0.0, word_embed_proj_dim=16, **sizes)
    return transformers.OPTForCausalLM(config).train()


@from_logits_and_hidden
def test_one_text_that_changes_the_next_is_refused(from_hidden):
    model = use_smile(leaking(), from_hidden=from_hidden)
    model(**SINGLE).loss.backward()
    with one_line(f"{type(model).__name__} {SEEN}"):
        model(**PACKED)


@masked
def test_a_mask_that_keeps_texts_apart_is_taken():
    model = use_smile(made(LLAMA).model)
    mask = (NUMBER[:, :, None] == NUMBER[:, None]).tril()[:, None]  # (1, 1, N, N)
    loss = model(**PACKED, seq_idx=NUMBER, attention_mask=mask).loss
    torch.testing.assert_close(loss, model(**PACKED).loss)


def test_mle_of_packed_rows_that_see_each_other_is_the_models_own():
    model = leaking()
    before = [0, 1, 3, 4, 5, 6]  # the first word of the second text does not follow
    logits = model(input_ids=TOKENS, position_ids=POSITIONS).logits[0, before]
    expected = torch.nn.functional.cross_entropy(logits, TOKENS[0, 1:][before])
    torch.testing.assert_close(use_smile(model, "mle")(**PACKED).loss, expected)


@masked
@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "places", [{"seq_idx": NUMBER}, {"cu_seq_lens_q": BOUNDS, "max_length_q": 5}]
)
def test_places_that_attention_does_not_read_are_refused(kind, places):
    model = made(LLAMA).model
    model.set_attn_implementation(kind)
    use_smile(model)
    batch = {"input_ids": TOKENS, "labels": TOKENS, **places}
    with one_line(SEEN):
        model(**batch)
    assert model(**batch, position_ids=POSITIONS).loss > 0


@masked
@pytest.mark.parametrize(
    "attention, version, rows, places, refused",
    [
        ("sdpa", "4.53.0", 2, {"position_ids"}, False),
        ("sdpa", "4.52.4", 1, {"position_ids"}, True),
        ("somebody's", "5.0.0", 1, {"position_ids"}, True),
        ("flash_attention_2", "4.53.0", 1, {"position_ids"}, False),
        ("flash_attention_2", "4.53.0", 1, {"cu_seq_lens_q"}, False),
        ("flash_attention_2", "4.52.4", 1, {"position_ids"}, True),
        ("flash_attention_2", "5.0.0", 2, {"position_ids"}, True),
        ("flash_attention_2", "5.0.0", 1, set(), True),
    ],
)
def test_attention_and_version_decide(attention, version, rows, places, refused, monkeypatch):
    """Flash attention separates texts only in a single row; the others by positions since 4.53."""
    model = made(LLAMA).model
    monkeypatch.setattr(model.config, "_attn_implementation_internal", attention)
    monkeypatch.setattr(sys.modules["transformers"], "__version__", version)
    inputs = {"position_ids": POSITIONS, "cu_seq_lens_q": BOUNDS}
    inputs = {name: inputs[name] for name in places}
    with one_line(MIXED_TEXTS_ERROR) if refused else contextlib.nullcontext():
        refuse_leaks(model, inputs, NUMBER.expand(rows, -1))
    refuse_leaks(model, inputs, torch.zeros(rows, 8))


FAMILIES = [name for name in hf_models.HERE if name in MASKED]


@pytest.mark.slow
@masked
@pytest.mark.parametrize("name", FAMILIES)
def test_a_class_of_the_table_keeps_texts_apart(name):
    if VERSION < (5, 0) and name.startswith(SINCE_5):
        pytest.skip("refused in this version")
    model = made(name).model.eval()
    positions = torch.arange(8).repeat(2)[None]
    if name.startswith(("Qwen2VL", "Qwen2_5_VL")):
        positions = positions.expand(4, 1, -1)
    first = torch.cat([torch.arange(3, 11), torch.arange(5, 13)])[None]
    second = first.clone()
    second[0, 1:4] = torch.tensor([11, 12, 13])
    logits, others = (
        model(input_ids=x, position_ids=positions, use_cache=False).logits for x in (first, second)
    )
    assert not torch.allclose(logits[:, 2:8], others[:, 2:8])
    torch.testing.assert_close(logits[:, 8:], others[:, 8:])


PHOTOS = [
    f"{name}ForConditionalGeneration"
    for name in ("Llava", "InternVL", "Qwen2VL", "Qwen2_5_VL", "Qwen3VL")
]
# Along which axis two photos come together; words do along the second.
AXES = {"pixel_values": 0, "image_grid_thw": 0, "position_ids": -1}


def photos(name):
    model, batch, *_ = made(name)
    pixels, alone = batch["pixel_values"].chunk(3), []
    for i in range(2):
        read, one = batch["attention_mask"][i].bool(), {"pixel_values": pixels[i]}
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


@pytest.mark.slow
@masked
@pytest.mark.parametrize("name", [name for name in PHOTOS if name in hf_models.HERE])
def test_photos_of_a_packed_row_do_not_see_each_other(name):
    """With a cache they would, also in forwards that take use_cache as a **kwarg."""
    model, alone, row = photos(name)
    use_smile(model)
    tokens = [(one["labels"][:, 1:] != -100).sum() for one in alone]
    loss = sum(model(**one).loss * n for one, n in zip(alone, tokens)) / sum(tokens)
    torch.testing.assert_close(model(**row).loss, loss)


@needs(PHOTOS[2])
def test_photos_that_see_each_other_are_refused():
    """Positions of time, height and width do not tell transformers where texts begin."""
    model, _, row = photos(PHOTOS[2])
    with one_line(SEEN):
        use_smile(model)(**{**row, "position_ids": row["position_ids"][1:]})
