"""Several captions in a row of a model of transformers are scored as if each had its own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from smile import Objective
from smile.hf import use_smile
from tests.smile import hf_steps
from tests.smile.families.batches import IMAGE_TOKEN, START
from tests.smile.hf_steps import GPT2, LLAMA, LLAVA, made

ALL = Objective({"mle": 0.2, "smile": 0.5, "reverse": 0.3})
BART = "BartForConditionalGeneration"


def rows_of(texts, seed=0):
    """Return a row for each (number of prompt tokens, of caption tokens)."""
    torch.manual_seed(seed)
    rows = []
    for prompt, caption in texts:
        tokens = torch.randint(3, 9, (1, prompt + caption))
        labels = tokens.masked_fill(torch.arange(prompt + caption) < prompt, -100)
        rows.append({"input_ids": tokens, "labels": labels})
    return rows


def packed(rows):
    """Pack the rows. Positions restart with each text, and attention stays within it."""
    batch = {key: torch.cat([row[key] for row in rows], 1) for key in rows[0]}
    lengths = [row["labels"].size(1) for row in rows]
    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    same = (number[:, None] == number) & (positions[:, None] >= positions)
    mask = torch.zeros(same.shape, dtype=torch.float64).masked_fill(~same, -torch.inf)
    return {**batch, "attention_mask": mask[None, None]}, number[None], positions[None]


def assert_step(model, batch, expected):
    loss, found = hf_steps.step(model, **batch)
    torch.testing.assert_close((loss.item(), found), expected, atol=1e-9, rtol=1e-7)


@hf_steps.needs(LLAMA)
@settings(deadline=None, max_examples=25)
@given(
    texts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=5),
    seed=st.integers(0, 100),
    keep_logits=st.booleans(),
)
def test_texts_of_a_row_count_as_if_alone(texts, seed, keep_logits):
    """Includes texts without a prompt, whose first token is not scored, and texts of one token."""
    rows, model = rows_of([text for text in [*texts, (1, 1)] if sum(text)], seed), made(LLAMA).model
    expected = hf_steps.each_alone(model, rows, Objective())
    batch, _, positions = packed(rows)
    batch.update(position_ids=positions, keep_logits=keep_logits)
    assert_step(use_smile(model), batch, expected)


@hf_steps.needs(LLAMA)
def test_segments_tell_captions_apart_beside_positions_that_go_on():
    model, rows = made(LLAMA).model, rows_of([(0, 5), (2, 3), (0, 4)])
    expected = hf_steps.each_alone(model, rows, ALL)
    batch, number, _ = packed(rows)
    batch.update(segments=number, position_ids=torch.arange(number.size(1))[None])
    assert_step(use_smile(model, ALL), batch, expected)


def test_segments_of_captions_alone_keep_their_first_token():
    family = made(GPT2)
    labels, model = family.batch["labels"], use_smile(family.model)
    expected = model(**family.batch).loss
    segments = torch.where(labels == -100, 0, torch.arange(1, 4)[:, None])
    torch.testing.assert_close(model(**family.batch, segments=segments).loss, expected)


@hf_steps.needs(LLAVA)
def test_an_images_tokens_are_no_words_even_if_they_are_labelled():
    model, batch, *_ = made(LLAVA)
    expected = use_smile(model)(**batch).loss
    image = batch["input_ids"] == IMAGE_TOKEN
    batch["labels"] = batch["labels"].where(~image, IMAGE_TOKEN)
    torch.testing.assert_close(model(**batch).loss, expected)


LANGUAGES = {"lang_to_id": {"<|en|>": 31, "<|fr|>": 32}, "task_to_id": {"transcribe": 33}}


@pytest.mark.parametrize(
    ("name", "keys", "openings"),
    [
        *((BART, {}, [START]), ("VisionEncoderDecoderModel", {}, [START])),
        (BART, {"forced_bos_token_id": 31}, [31]),
        (
            *("WhisperForConditionalGeneration", {**LANGUAGES, "no_timestamps_token_id": 34}),
            [[START, language, 33, 34] for language in (31, 32, 31)],
        ),
    ],
)
def test_special_tokens_before_a_caption_are_scored_over_all_words_and_are_none_of_it(
    name, keys, openings
):
    if name not in hf_steps.HERE:
        pytest.skip(f"transformers has no {name}")
    model, batch, *_ = made(name)
    if keys and not hasattr(model, "generation_config"):
        pytest.skip("this transformers has no generation_config")
    for key, value in keys.items():
        setattr(model.generation_config, key, value)
    openings, rest = torch.tensor(openings).expand(3, -1), batch["labels"]
    batch["labels"], n = torch.cat([openings, rest], 1), openings.size(1)
    logits = model(**batch).logits
    first = F.cross_entropy(logits[:, :n].flatten(0, 1), openings.flatten(), reduction="sum")
    rest = Objective("smile")(logits[:, n:], rest, reduction="sum")
    expected = (first + rest.loss) / (openings.numel() + rest.tokens)
    found = use_smile(model)(**batch).loss
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
