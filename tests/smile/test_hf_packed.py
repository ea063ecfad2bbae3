"""Several captions in a row of a model of transformers are scored as if each had its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smile import Objective
from smile.hf import compute_loss_func, use_smile
from tests.smile import hf_models, hf_steps
from tests.smile.families.batches import PAD, VOCABULARY
from tests.smile.hf_steps import GPT2, LLAMA, T5, from_logits_and_hidden, gradients, made, one_line

CAUSAL = LLAMA if LLAMA in hf_models.HERE else GPT2
ALL = Objective({"mle": 0.2, "smile": 0.5, "reverse": 0.3})
needs_llama = hf_steps.needs(LLAMA)


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


@needs_llama
@settings(deadline=None, max_examples=25)
@given(
    texts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=5),
    seed=st.integers(0, 100),
    from_hidden=st.booleans(),
    source=st.sampled_from(["", "seq_idx", "cu_seq_lens_q", "segments"]),
    shifted=st.booleans(),
)
def test_packed_texts_count_as_if_alone(texts, seed, from_hidden, source, shifted):
    """Includes texts without a prompt, whose first token is not scored, and texts of one token."""
    rows, model = rows_of([text for text in [*texts, (1, 1)] if sum(text)], seed), made(LLAMA).model
    expected = hf_steps.each_alone(model, rows, Objective())
    batch, number, positions = packed(rows)
    bounds = torch.cat([(positions[0] == 0).nonzero()[:, 0], torch.tensor([positions.size(1)])])
    sources = {"seq_idx": number, "cu_seq_lens_q": bounds.int(), "segments": number * 3 + 5}
    batch.update({k: v for k, v in sources.items() if k == source}, position_ids=positions)
    if shifted and source != "segments":
        batch["shift_labels"] = torch.nn.functional.pad(batch.pop("labels"), (0, 1), value=-100)
        batch["shift_labels"] = batch["shift_labels"][:, 1:]
    model = use_smile(model, from_hidden=from_hidden)
    assert_step(model, batch, expected)


@needs_llama
@pytest.mark.parametrize("shifted", [False, True])
def test_segments_beside_positions_that_go_on(shifted):
    """The previous caption does not predict a caption's first token, whatever its positions."""
    model, rows = made(LLAMA).model, rows_of([(0, 5), (2, 3), (0, 4)])
    expected = hf_steps.each_alone(model, rows, ALL)
    batch, number, _ = packed(rows)
    if shifted:
        batch["shift_labels"] = batch.pop("labels").roll(-1)
        batch["shift_labels"][:, -1] = -100
        number = number.roll(-1)
    batch.update(segments=number, position_ids=torch.arange(number.size(1))[None])
    assert_step(use_smile(model, ALL), batch, expected)


@from_logits_and_hidden
def test_labels_that_are_shifted_already(from_hidden):
    family = made(CAUSAL)
    model = use_smile(family.model, from_hidden=from_hidden)
    expected = model(**family.batch).loss
    batch = dict(family.batch)
    labels = torch.nn.functional.pad(batch.pop("labels"), (0, 1), value=-100)[:, 1:]
    torch.testing.assert_close(model(**batch, shift_labels=labels).loss, expected)
    both = model(**batch, labels=torch.zeros_like(labels), shift_labels=labels).loss
    torch.testing.assert_close(both, expected)
    # A part of the row, as a process of context parallelism has it, without the rows after.
    half = model(**{key: value[:, :4] for key, value in batch.items()}, shift_labels=labels[:, :4])
    logits = use_smile(made(CAUSAL).model)(**family.batch).logits[:, :4]
    torch.testing.assert_close(half.loss, Objective()(logits, labels[:, :4]).loss)


@from_logits_and_hidden
def test_turns_of_an_assistant_are_captions_of_their_own(from_hidden):
    family = made(CAUSAL)
    batch = dict(family.batch)
    batch["labels"] = labels = batch["input_ids"].clone()
    labels[:, [0, 1, 4]] = -100
    labels[batch["input_ids"] == PAD] = -100
    logits = family.model(**{key: v for key, v in batch.items() if key != "labels"}).logits
    apart = torch.cat([labels, labels])
    apart[:3, 4:], apart[3:, :4] = -100, -100
    expected = Objective()(torch.cat([logits, logits])[:, :-1], apart[:, 1:]).loss
    model = use_smile(family.model, from_hidden=from_hidden)
    torch.testing.assert_close(model(**batch).loss, expected)
    # Explicit segments are taken as they are.
    as_one = Objective()(logits[:, :-1], labels[:, 1:]).loss
    segments = torch.zeros_like(labels)
    torch.testing.assert_close(model(**batch, segments=segments).loss, as_one)
    # A weight of 0 leaves a caption one caption.
    weights = (labels != -100).double()
    batch["labels"] = labels = batch["input_ids"]
    whole = Objective()(logits[:, :-1], labels[:, 1:], weights=weights[:, 1:]).loss
    torch.testing.assert_close(model(**batch, weights=weights).loss, whole)
    if not from_hidden:
        compute_loss = compute_loss_func(made(CAUSAL).model)
        labels = labels.masked_fill(weights == 0, -100)
        torch.testing.assert_close(compute_loss({"logits": logits}, labels), expected)


@pytest.mark.parametrize("name", [CAUSAL, T5])
@from_logits_and_hidden
def test_weights_of_tokens_and_of_rows_are_those_of_the_objective(name, from_hidden):
    family = made(name)
    labels = family.batch["labels"]
    weights = torch.rand(labels.shape, dtype=torch.float64)
    logits = use_smile(family.model)(**family.batch).logits
    first = int(family.shift)
    each = [
        Objective()(logits[:, : labels.size(1) - first], labels[:, first:], weights=chosen)
        for chosen in (weights[:, first:], weights[:, 0])
    ]
    model = use_smile(family.model, from_hidden=from_hidden)
    for result, chosen in zip(each, (weights, weights[:, 0])):
        torch.testing.assert_close(model(**family.batch, weights=chosen).loss, result.loss)
        by_items = model(**family.batch, weights=chosen, num_items_in_batch=7).loss
        torch.testing.assert_close(by_items, result.loss * result.tokens / 7)


END = 1  # of the tiny models' configurations, as set below


@pytest.fixture
def with_end():
    family = made(CAUSAL)
    family.model.config.eos_token_id = END
    if hasattr(family.model, "generation_config"):
        family.model.generation_config.eos_token_id = [END, 0]
    return use_smile(family.model)


def row(model, *tokens, prompt=0, **inputs):
    tokens = torch.tensor([tokens])
    labels = tokens.masked_fill(torch.arange(tokens.size(1)) < prompt, -100)
    return model(input_ids=tokens, labels=labels, **inputs).loss


@pytest.mark.parametrize(
    "tokens, prompt",
    [
        ((3, 4, END, 5, 6, END), 0),  # two captions
        ((END, 3, 4, END, 5, END), 0),  # that begin as they end
        ((3, 4, END, 5, 6, END, 7), 1),  # the last one cut
        ((3, 4, END, END, 5, END), 0),
    ],
)
def test_captions_that_are_concatenated_are_refused(tokens, prompt, with_end):
    for training in (True, False):
        with one_line(r"row 0 .* token (0 or )?1 more.*assistant_only_loss=True.*segments"):
            row(with_end.train(training), *tokens, prompt=prompt)
    tokens = torch.tensor([tokens])
    segments = tokens.eq(END).cumsum(1)
    assert row(with_end, *tokens[0].tolist(), prompt=prompt, segments=segments).isfinite()
    with one_line("has the end token"):
        logits = torch.zeros(*tokens.shape, VOCABULARY)
        compute_loss_func(with_end)({"logits": logits}, tokens)


@pytest.mark.parametrize(
    "tokens, prompt",
    [
        ((3, 4, 5, END), 0),
        ((END, 3, 4, 5, END), 0),  # the beginning is the same token
        ((3, 4, END, 5), 0),  # a line ends after the end, as in ChatML
        ((3, 4, END, END, END), 0),  # padding by the same token
        ((3, END, 4, END, 5, END), 4),
    ],
)
def test_one_caption_that_ends_is_not_refused(tokens, prompt, with_end):
    assert row(with_end, *tokens, prompt=prompt).isfinite()


def test_turns_that_end_are_not_refused(with_end):
    tokens = torch.tensor([[3, 4, END, 5, 6, 7, END]])
    turns = tokens.masked_fill(torch.arange(7) == 3, -100)
    assert with_end(input_ids=tokens, labels=turns).loss.isfinite()
    if CAUSAL == LLAMA:
        positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
        assert with_end(input_ids=tokens, labels=tokens, position_ids=positions).loss.isfinite()


@needs_llama
@pytest.mark.parametrize("mask, found", [("4d", r"is \(1, 1, 17"), ("numbers", "has numbers")])
def test_an_attention_mask_that_packs_needs_to_say_more(mask, found):
    batch, number, _ = packed(rows_of([(2, 5), (1, 3), (3, 3)]))
    if mask == "numbers":
        batch["attention_mask"] = number + 1
    model = use_smile(made(LLAMA).model)
    for training in (True, False):
        with one_line(f"attention_mask {found}.*segments"):
            model.train(training)(**batch)
    assert model(**batch, segments=number).loss.isfinite()


@from_logits_and_hidden
def test_segments_of_captions_alone_keep_their_first_token(from_hidden):
    family = made(CAUSAL)
    labels = family.batch["labels"]
    model = use_smile(family.model, from_hidden=from_hidden)
    expected = model(**family.batch).loss
    segments = torch.where(labels == -100, 0, torch.arange(1, 4)[:, None])
    torch.testing.assert_close(model(**family.batch, segments=segments).loss, expected)


def test_what_does_not_fit_is_one_line():
    family = made(CAUSAL)
    model, batch = use_smile(family.model), family.batch
    labels = batch["labels"]
    for more, line in (
        ({"segments": labels[:, 1:]}, r"segments is \(3, 6\), but labels is \(3, 7\)"),
        ({"weights": torch.ones(3, 6)}, r"weights is \(3, 6\), but labels is \(3, 7\)"),
        ({"seq_idx": labels[:, 1:]}, r"seq_idx is for \(3, 6\) tokens, but labels is \(3, 7\)"),
        ({"cu_seq_lens_q": torch.tensor([0, 7])}, r"cu_seq_lens_q is for \(1, 7\) tokens"),
    ):
        with one_line(line):
            model(**batch, **more)
    t5 = made(T5)
    with one_line("T5ForConditionalGeneration does not accept shift_labels"):
        use_smile(t5.model)(**t5.batch, shift_labels=t5.batch["labels"])


@needs_llama
def test_a_mask_with_which_packed_captions_see_each_other_is_refused():
    model, *_ = made(CAUSAL)
    tokens = torch.tensor([[3, 4, 5, 6, 3, 4]])
    batch = {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}
    use_smile(model)
    model(**batch, position_ids=torch.arange(6)[None])
    with one_line("attention_mask, with which captions"):
        model(**batch, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
    padding = torch.tensor([[0, 0, 0, 1, 1, 1]])  # on the left
    batch["attention_mask"] = padding
    model(**batch, position_ids=torch.tensor([[1, 1, 1, 0, 1, 2]]))


def test_turns_of_an_encoder_decoder_model_are_captions_too():
    model, batch, *_ = made(T5)
    labels = torch.tensor([[5, 6, 7, 1, -100, -100, 8, 9, 5, 1]]).expand(3, -1)
    segments = torch.tensor([[0] * 5 + [1] * 5]).expand(3, -1)
    use_smile(model)
    found = model(**{**batch, "labels": labels}).loss
    expected = model(**{**batch, "labels": labels, "segments": segments}).loss
    torch.testing.assert_close(found, expected)
