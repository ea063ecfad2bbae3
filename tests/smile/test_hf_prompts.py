"""Labels that are a copy of input_ids are seen by what they say next to an image's tokens."""

import pytest
import torch

from smile import Objective
from smile.hf import compute_loss_func, undo, use_smile
from tests.smile import hf_models
from tests.smile.families.batches import IMAGE_TOKEN, START
from tests.smile.hf_steps import LLAVA, made, needs, one_line

pytestmark = needs(LLAVA)
END = 1
IMAGE = [IMAGE_TOKEN] * 4
USER, ASSISTANT = [5, 6], [7, 8]
TEXT = [9, 10, 11, END]


def llava(*tokens, scored, rows=2):
    """LLaVA, and a batch in whose labels the tokens are -100 where `scored` is not true of them."""
    model, batch, *_ = made(LLAVA)
    model.config.text_config.bos_token_id = START
    words = torch.tensor([[*tokens]]).expand(rows, -1)
    labels = torch.tensor([[token if yes else -100 for token, yes in zip(tokens, scored)]])
    batch = {"input_ids": words, "pixel_values": batch["pixel_values"][:rows]}
    return use_smile(model), {**batch, "labels": labels.expand(rows, -1).clone()}


def all_but_the_image(tokens):
    return [token != IMAGE_TOKEN for token in tokens]


COPIES = {
    "LLaVA-1.5": [START, *USER, *IMAGE, 12, 13, *ASSISTANT, *TEXT],
    "an image behind the first token": [START, *IMAGE, 12, 13, *ASSISTANT, *TEXT],
    "a text that begins behind the image": [*IMAGE, START, 12, *ASSISTANT, *TEXT],
}


# Words behind an image without labels, which is behind the first token, could be a caption.
UNLABELLED = COPIES.keys() - {"an image behind the first token"}
EACH = [(name, True) for name in COPIES] + [(name, False) for name in sorted(UNLABELLED)]


@pytest.mark.parametrize("name, image_labelled", EACH)
def test_a_copy_of_the_input_is_refused(name, image_labelled):
    tokens = COPIES[name]
    model, batch = llava(
        *tokens, scored=[True] * len(tokens) if image_labelled else all_but_the_image(tokens)
    )
    for training in (True, False):
        with one_line("^row 0 .* completion_only_loss=True"):
            model.train(training)(**batch)
    batch["labels"][0, :-4] = -100
    with one_line("^row 1 of the labels"):
        model(**batch)
    shifted = {**batch, "shift_labels": batch["labels"].roll(-1)}
    shifted["shift_labels"][:, -1] = -100
    del shifted["labels"]
    with one_line("^row 1 of the labels"):
        model(**shifted)
    batch["labels"][1, :-4] = -100
    expected = model(**batch).loss
    segments = (torch.arange(len(tokens)) >= len(tokens) - 4).long().expand(2, -1)
    labels = batch["input_ids"]
    assert model(**{**batch, "labels": labels, "segments": segments}).loss != expected
    # To cross-entropy alone it is no matter.
    own = undo(model)(**{**batch, "labels": labels.masked_fill(labels == IMAGE_TOKEN, -100)}).loss
    use_smile(model, Objective("mle", label_smoothing=0.0))
    torch.testing.assert_close(model(**{**batch, "labels": labels}).loss, own.double())


def test_what_a_loss_function_sees_of_it():
    model, batch = llava(*COPIES["LLaVA-1.5"], scored=[True] * 15)
    logits = torch.zeros(2, 15, hf_models.VOCABULARY)
    with one_line("next to an image"):
        compute_loss_func(model)({"logits": logits}, batch["labels"])


FINE = {
    "a prompt": ([START, *USER, *IMAGE, *ASSISTANT, *TEXT], 9),
    "no prompt": ([START, *IMAGE, *TEXT], 5),
    "nothing but an image": ([*IMAGE, *TEXT], 4),
    "two images": ([*USER, *IMAGE, 12, *IMAGE, *ASSISTANT, *TEXT], 13),
}


@pytest.mark.parametrize("tokens, before", FINE.values(), ids=FINE)
def test_a_caption_is_not_refused_wherever_its_image_is(tokens, before):
    places = range(len(tokens))
    model, batch = llava(*tokens, scored=[n >= before for n in places], rows=1)
    if tokens.count(IMAGE_TOKEN) == 8:
        batch["pixel_values"] = batch["pixel_values"].repeat(2, 1, 1, 1)
    loss = model(**batch).loss
    assert loss.isfinite()
    batch["labels"][:, tokens.index(IMAGE_TOKEN)] = IMAGE_TOKEN  # is no word
    if tokens[before - 1] != IMAGE_TOKEN:
        torch.testing.assert_close(model(**batch).loss, loss)


@pytest.mark.parametrize("packed", [False, True])
def test_a_first_token_that_is_not_scored_is_no_prompt(packed):
    """Labels of it change nothing, though an image follows."""
    tokens = [START, *IMAGE, *TEXT]
    scored = [True] + [False] * 4 + [True] * 4
    model, batch = llava(*tokens * (1 + packed), scored=scored * (1 + packed), rows=1)
    if packed:
        batch["pixel_values"] = batch["pixel_values"].repeat(2, 1, 1, 1)
        batch["position_ids"] = torch.arange(9).repeat(2)[None]
    loss = model(**batch).loss
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == START, -100)
    torch.testing.assert_close(loss, model(**batch).loss)
