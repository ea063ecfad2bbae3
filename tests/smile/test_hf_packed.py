"""Several captions in a row of a model of transformers are scored as if each had its own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from smile import Objective
from smile.hf import compute_loss_func, undo, use_smile
from tests.smile import hf_models, hf_steps
from tests.smile.families.batches import IMAGE_TOKEN, PAD, START
from tests.smile.hf_steps import GPT2, LLAMA, LLAVA, T5, gradients, made

CAUSAL = LLAMA if LLAMA in hf_models.HERE else GPT2
ALL = Objective({"mle": 0.2, "smile": 0.5, "reverse": 0.3})
BART, WHISPER = "BartForConditionalGeneration", "WhisperForConditionalGeneration"


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
    loss = model(**batch).loss
    loss.backward()
    torch.testing.assert_close((loss.item(), gradients(model)), expected, atol=1e-9, rtol=1e-7)


def shift_labels(batch):
    labels = F.pad(batch.pop("labels"), (0, 1), value=-100)
    return {**batch, "shift_labels": labels[:, 1:]}


@hf_steps.needs(LLAMA)
@settings(deadline=None, max_examples=25)
@given(
    texts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=5),
    seed=st.integers(0, 100),
    keep_logits=st.booleans(),
    shifted=st.booleans(),
)
def test_texts_of_a_row_count_as_if_alone(texts, seed, keep_logits, shifted):
    """Includes texts without a prompt, whose first token is not scored, and texts of one token."""
    rows, model = rows_of([text for text in [*texts, (1, 1)] if sum(text)], seed), made(LLAMA).model
    expected = hf_steps.each_alone(model, rows, Objective())
    batch, _, positions = packed(rows)
    batch = {**(shift_labels(batch) if shifted else batch), "position_ids": positions}
    assert_step(use_smile(model), {**batch, "keep_logits": keep_logits}, expected)


@hf_steps.needs(LLAMA)
@pytest.mark.parametrize("shifted", [False, True])
def test_segments_tell_captions_apart_beside_positions_that_go_on(shifted):
    """The previous caption does not predict a caption's first token, whatever its positions."""
    model, rows = made(LLAMA).model, rows_of([(0, 5), (2, 3), (0, 4)])
    expected = hf_steps.each_alone(model, rows, ALL)
    batch, number, _ = packed(rows)
    if shifted:
        batch, number = shift_labels(batch), number.roll(-1)
    batch.update(segments=number, position_ids=torch.arange(number.size(1))[None])
    assert_step(use_smile(model, ALL), batch, expected)


def test_segments_of_captions_alone_keep_their_first_token():
    family = made(CAUSAL)
    labels, model = family.batch["labels"], use_smile(family.model)
    expected = model(**family.batch).loss
    segments = torch.where(labels == -100, 0, torch.arange(1, 4)[:, None])
    torch.testing.assert_close(model(**family.batch, segments=segments).loss, expected)


def test_shift_labels_are_the_next_tokens_also_at_the_end_of_a_part_of_a_row():
    family = made(CAUSAL)
    model = use_smile(family.model)
    expected = model(**family.batch).loss
    batch = shift_labels(dict(family.batch))
    torch.testing.assert_close(model(**batch).loss, expected)
    labels = batch["shift_labels"][:, :4]
    part = {key: value[:, :4] for key, value in batch.items()}
    logits = model(**family.batch).logits[:, :4]
    torch.testing.assert_close(model(**part).loss, Objective()(logits, labels).loss)


def test_turns_of_an_assistant_are_captions_of_their_own():
    family = made(CAUSAL)
    batch = dict(family.batch)
    batch["labels"] = labels = batch["input_ids"].clone()
    labels[:, [0, 1, 4]] = -100
    labels[batch["input_ids"] == PAD] = -100
    logits = family.model(**{key: v for key, v in batch.items() if key != "labels"}).logits
    apart = torch.cat([labels, labels])
    apart[:3, 4:], apart[3:, :4] = -100, -100
    expected = Objective()(torch.cat([logits, logits])[:, :-1], apart[:, 1:]).loss
    found = compute_loss_func(made(CAUSAL).model)({"logits": logits}, labels)
    torch.testing.assert_close(found, expected)
    model = use_smile(family.model)
    torch.testing.assert_close(model(**batch).loss, expected)
    # Explicit segments are taken as they are.
    as_one = Objective()(logits[:, :-1], labels[:, 1:]).loss
    segments = torch.zeros_like(labels)
    torch.testing.assert_close(model(**batch, segments=segments).loss, as_one)


def test_turns_of_an_encoder_decoder_are_captions_of_their_own():
    model, batch, *_ = made(T5)
    labels = torch.tensor([[5, 6, 7, 1, -100, -100, 8, 9, 5, 1]] * 3)
    segments = torch.tensor([[0] * 5 + [1] * 5]).expand(3, -1)
    found = use_smile(model)(**{**batch, "labels": labels}).loss
    expected = model(**{**batch, "labels": labels, "segments": segments}).loss
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", [CAUSAL, T5])
def test_weights_of_rows_are_those_of_the_objective(name):
    family = made(name)
    labels, weights = family.batch["labels"], torch.rand(3, dtype=torch.float64)
    first = int(family.shift)
    logits = use_smile(family.model)(**family.batch).logits[:, : labels.size(1) - first]
    result = Objective()(logits, labels[:, first:], weights=weights)
    for keep_logits in (True, False):
        batch = {**family.batch, "weights": weights, "keep_logits": keep_logits}
        torch.testing.assert_close(family.model(**batch).loss, result.loss)


@pytest.mark.skipif(LLAVA not in hf_models.HERE, reason=f"transformers has no {LLAVA}")
def test_an_images_tokens_are_no_words_even_if_they_are_labelled():
    model, batch, *_ = made(LLAVA)
    expected = use_smile(model)(**batch).loss
    image = batch["input_ids"] == IMAGE_TOKEN
    batch["labels"] = batch["labels"].where(~image, IMAGE_TOKEN)
    torch.testing.assert_close(model(**batch).loss, expected)


def opened(labels, openings):
    """Return labels with an end token, after openings (3, n) or (n,)."""
    ended = F.pad(labels, (0, 1), value=-100)
    ended[torch.arange(3), (labels != -100).sum(1)] = 1
    return torch.cat([torch.tensor(openings).expand(3, -1), ended], 1)


def begins_with_start(model):
    return [START]


def begins_with_a_language_and_a_task(model):
    model.generation_config.lang_to_id = {"<|en|>": 31, "<|fr|>": 32}
    model.generation_config.task_to_id = {"transcribe": 33}
    model.generation_config.no_timestamps_token_id = 34
    return [[START, language, 33, 34] for language in (31, 32, 31)]


def begins_with_a_forced_language(model):
    model.generation_config.forced_bos_token_id = 31
    return [31]


@pytest.mark.parametrize(
    ("name", "opening"),
    [
        *((BART, begins_with_start), ("VisionEncoderDecoderModel", begins_with_start)),
        *((WHISPER, begins_with_a_language_and_a_task), (BART, begins_with_a_forced_language)),
    ],
)
def test_special_tokens_before_a_caption_are_scored_over_all_words_and_are_none_of_it(
    name, opening
):
    if name not in hf_models.HERE:
        pytest.skip(f"transformers has no {name}")
    model, batch, *_ = made(name)
    if not hasattr(model, "generation_config") and opening is not begins_with_start:
        pytest.skip("this transformers has no generation_config")
    openings = opening(model)
    batch["labels"] = labels = opened(batch["labels"], openings)
    n = labels.size(1) - made(name).batch["labels"].size(1) - 1
    logits = undo(model)(**batch).logits
    first = F.cross_entropy(logits[:, :n].flatten(0, 1), labels[:, :n].flatten(), reduction="sum")
    rest = Objective("smile")(logits[:, n:], labels[:, n:])
    expected = (first + rest.loss * rest.tokens) / (rest.tokens + 3 * n)
    found = use_smile(model)(**batch).loss
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
