"""Labels that are no words of a caption: opening tokens, and prompts next to an image's tokens."""

import pytest
import torch
import torch.nn.functional as F
import transformers

from smile import Objective
from smile.hf import compute_loss_func, undo, use_smile
from tests.smile.families.batches import IMAGE_TOKEN, SIZES, START, VOCABULARY
from tests.smile.hf_steps import LLAVA, made, needs, one_line

BART, WHISPER = "BartForConditionalGeneration", "WhisperForConditionalGeneration"
VED = "VisionEncoderDecoderModel"
END = 1  # of the tiny models' configurations
LANGUAGE, OTHER, TASK, NO_TIMES = 31, 32, 33, 34
MULTILINGUAL = [
    f"{name}ForConditionalGeneration"
    for name in ("MBart", "M2M100")
    if hasattr(transformers, f"{name}ForConditionalGeneration")
]


def opened(labels, openings):
    """Return labels with an end token, after openings (3, n) or (n,)."""
    ended = F.pad(labels, (0, 1), value=-100)
    ended[torch.arange(3), (labels != -100).sum(1)] = END
    return torch.cat([torch.tensor(openings).expand(3, -1), ended], 1)


def expected(model, batch, openings):
    """Return the openings' cross-entropy over the vocabulary plus SMILE of the rest."""
    logits, labels = undo(model)(**batch).logits, batch["labels"]
    first = F.cross_entropy(
        logits[:, :openings].flatten(0, 1), labels[:, :openings].flatten(), reduction="sum"
    )
    rest = Objective("smile")(logits[:, openings:], labels[:, openings:])
    return (first + rest.loss * rest.tokens) / (rest.tokens + 3 * openings)


def assert_is(expected, model, batch, objective=None):
    for from_hidden in (False, True):
        use_smile(model, objective, from_hidden)
        torch.testing.assert_close(model(**batch).loss, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [BART, VED])
def test_a_beginning_of_a_text_is_scored_over_all_words_and_is_none_of_them(name):
    """BART's `<s>`, and the [CLS] of a BERT decoder."""
    model, batch, *_ = made(name)
    batch["labels"] = labels = opened(batch["labels"], [START])
    loss = expected(model, batch, 1)
    own = model(**batch)
    assert_is(loss, model, batch)
    assert_is(own.loss.double(), model, batch, "mle")
    found = compute_loss_func(made(name).model)(own, labels)
    torch.testing.assert_close(found, loss, atol=1e-6, rtol=0)


@needs(WHISPER)
def test_language_and_task_of_whisper_are_scored_over_all_words():
    model, batch, *_ = made(WHISPER)
    generation = model.generation_config
    generation.lang_to_id = {"<|en|>": LANGUAGE, "<|fr|>": OTHER}
    generation.task_to_id = {"transcribe": TASK}
    generation.no_timestamps_token_id = NO_TIMES
    openings = [[START, language, TASK, NO_TIMES] for language in (LANGUAGE, OTHER, LANGUAGE)]
    batch["labels"] = opened(batch["labels"], openings)
    assert_is(expected(model, batch, 4), model, batch)


def test_tokens_that_generation_is_forced_to_begin_with():
    model, batch, *_ = made(BART)
    model.config.forced_decoder_ids = [[1, LANGUAGE], [2, TASK]]
    batch["labels"] = labels = opened(batch["labels"], [LANGUAGE, TASK])
    assert_is(expected(model, batch, 2), model, batch)
    labels[:, 3] = LANGUAGE  # later it is a word
    assert_is(expected(model, batch, 2), model, batch)


def multilingual(name):
    torch.manual_seed(0)
    names = ("dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop")
    tokens = {"pad_token_id": 0, "bos_token_id": START, "eos_token_id": END}
    tokens.update(decoder_start_token_id=END, vocab_size=VOCABULARY, max_position_embeddings=32)
    config = getattr(transformers, name.replace("ForConditionalGeneration", "Config"))
    config = config(**SIZES["bart"], **dict.fromkeys(names, 0.0), **tokens)
    batch = dict(made(BART).batch)
    batch["labels"] = opened(batch["labels"], [[LANGUAGE], [OTHER], [LANGUAGE]])
    return getattr(transformers, name)(config).double(), batch


@pytest.mark.parametrize("name", MULTILINGUAL)
def test_a_language_that_no_configuration_names_has_to_be_named(name):
    model, batch = multilingual(name)
    loss = expected(model, batch, 1)
    use_smile(model)
    with one_line("configuration does not have; set"):
        model(**batch)
    segments = (torch.arange(batch["labels"].size(1)) > 0).long().expand(3, -1)
    torch.testing.assert_close(model(**batch, segments=segments).loss, loss, atol=1e-6, rtol=0)
    use_smile(model, "mle")(**batch)  # to it captions are the same
    settings = getattr(model, "generation_config", model.config)
    settings.lang_to_id = {"en": LANGUAGE, "fr": OTHER}
    assert_is(loss, model, batch)
    del settings.lang_to_id
    batch["labels"][:, 0] = settings.forced_bos_token_id = LANGUAGE
    assert_is(expected(model, batch, 1), model, batch)


@pytest.mark.parametrize(
    ("spec", "first"),
    [({"truncation": 0.5, "smile": 0.5}, None), ("smile", False), ({"mle": 0.5, "smile": 0.5}, 0)],
    ids=["truncation", "no first-token MLE", "MLE in a mixture scores the beginning"],
)
def test_captions_without_their_beginning(spec, first):
    model, batch, *_ = made(BART)
    batch["labels"] = labels = opened(batch["labels"], [START])
    logits, objective = model(**batch).logits, Objective(spec, first_token_mle=first)
    begins = (torch.arange(labels.size(1)) == 0).expand(3, -1)
    if "mle" in objective.weights:
        expected = objective(logits, labels, (~begins).long())
    else:
        expected = objective(logits, labels.masked_fill(begins, -100))
    assert_is(expected.loss, model, batch, objective)


def test_the_trainers_division_is_by_what_is_scored(tmp_path):
    """SMILE scores all special tokens, truncation none of them."""
    from tests.smile import trainer_parts

    torch.manual_seed(0)
    tokens = {"pad_token_id": trainer_parts.PAD, "bos_token_id": 1, "decoder_start_token_id": 2}
    config = transformers.BartConfig(**SIZES["bart"], vocab_size=24, dropout=0, **tokens)
    model = transformers.BartForConditionalGeneration(config).double()
    rows = [{**row, "labels": [1, *row["input_ids"]]} for row in trainer_parts.rows()]
    words = sum(len(row["input_ids"]) for row in rows)
    for objective, tokens in (("smile", words + len(rows)), ({"smile": 1, "truncation": 1}, words)):
        cls = trainer_parts.SmileSeq2SeqTrainer
        trainer = trainer_parts.make(cls, tmp_path, rows, model, objective)
        batches = iter(trainer.get_train_dataloader())
        (batch,), items = trainer.get_batch_samples(batches, 1, torch.device("cpu"))
        assert items == tokens
        loss = use_smile(model, objective)(**batch).loss.item()
        assert trainer.train().training_loss == pytest.approx(loss, rel=1e-5)


IMAGE = [IMAGE_TOKEN] * 4
USER, ASSISTANT = [5, 6], [7, 8]
TEXT = [9, 10, 11, END]


def llava(tokens, rows=1):
    """Return LLaVA with the objective, and rows whose labels are the tokens."""
    model, batch, *_ = made(LLAVA)
    model.config.text_config.bos_token_id = START
    words = torch.tensor([tokens] * rows)
    photos = batch["pixel_values"][:1].repeat(tokens.count(IMAGE_TOKEN) // 4 * rows, 1, 1, 1)
    batch = {"input_ids": words, "labels": words.clone(), "pixel_values": photos}
    return use_smile(model), batch


# Words behind an image without labels, which is behind the first token, could be a caption.
COPIES = {
    "LLaVA-1.5": ([START, *USER, *IMAGE, 12, 13, *ASSISTANT, *TEXT], [True, False]),
    "an image behind the first token": ([START, *IMAGE, 12, 13, *ASSISTANT, *TEXT], [True]),
    "a text behind the image": ([*IMAGE, START, 12, *ASSISTANT, *TEXT], [True, False]),
}


@needs(LLAVA)
@pytest.mark.parametrize("tokens, labelled", COPIES.values(), ids=COPIES)
def test_a_copy_of_the_input_is_refused(tokens, labelled):
    for image_labelled in labelled:
        model, batch = llava(tokens, rows=2)
        labels = batch["labels"]
        if not image_labelled:
            labels[labels == IMAGE_TOKEN] = -100
        for training in (True, False):
            with one_line("^row 0 .* completion_only_loss=True"):
                model.train(training)(**batch)
        with one_line("next to an image"):
            logits = torch.zeros(*labels.shape, VOCABULARY)
            compute_loss_func(model)({"logits": logits}, batch["input_ids"])
        labels[0, :-4] = -100
        with one_line("^row 1 of the labels"):
            model(**batch)
        shifted = {**batch, "labels": None, "shift_labels": labels.roll(-1)}
        shifted["shift_labels"][:, -1] = -100
        with one_line("^row 1 of the labels"):
            model(**shifted)
        labels[1, :-4] = -100
        expected = model(**batch).loss
        batch["labels"] = labels = batch["input_ids"]
        segments = (torch.arange(len(tokens)) >= len(tokens) - 4).long().expand(2, -1)
        assert model(**batch, segments=segments).loss != expected
        # To cross-entropy alone it is no matter.
        words = labels.masked_fill(labels == IMAGE_TOKEN, -100)
        own = undo(model)(**{**batch, "labels": words}).loss
        use_smile(model, "mle")
        torch.testing.assert_close(model(**batch).loss, own.double())


FINE = {
    "a prompt": ([START, *USER, *IMAGE, *ASSISTANT, *TEXT], 9),
    "no prompt": ([START, *IMAGE, *TEXT], 5),
    "nothing but an image": ([*IMAGE, *TEXT], 4),
    "two images": ([*USER, *IMAGE, 12, *IMAGE, *ASSISTANT, *TEXT], 13),
}


@needs(LLAVA)
@pytest.mark.parametrize("tokens, before", FINE.values(), ids=FINE)
def test_a_caption_is_not_refused_wherever_its_image_is(tokens, before):
    model, batch = llava(tokens)
    batch["labels"][:, :before] = -100
    loss = model(**batch).loss
    assert loss.isfinite()
    batch["labels"][:, tokens.index(IMAGE_TOKEN)] = IMAGE_TOKEN  # is no word
    if tokens[before - 1] != IMAGE_TOKEN:
        torch.testing.assert_close(model(**batch).loss, loss)


@needs(LLAVA)
@pytest.mark.parametrize("texts", [1, 2])
def test_a_first_token_that_is_not_scored_is_no_prompt(texts):
    model, batch = llava([START, *IMAGE, *TEXT] * texts)
    labels = batch["labels"]
    labels[labels == IMAGE_TOKEN] = -100
    if texts > 1:
        batch["position_ids"] = torch.arange(9).repeat(texts)[None]
    loss = model(**batch).loss
    labels[labels == START] = -100
    torch.testing.assert_close(loss, model(**batch).loss)
