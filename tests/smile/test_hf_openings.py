"""Labels that are no words of a caption: opening tokens, and prompts next to an image's tokens."""

import pytest
import torch
import torch.nn.functional as F
import transformers

from smile import Objective
from smile.hf import compute_loss_func, undo, use_smile
from tests.smile import hf_models
from tests.smile.families.batches import IMAGE_TOKEN, START
from tests.smile.families.expected import naive_smile
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


def opened(labels, *openings):
    openings = torch.tensor(openings).expand(3, -1) if isinstance(openings[0], int) else openings[0]
    ended = F.pad(labels, (0, 1), value=-100)
    ended[torch.arange(3), (labels != -100).sum(1)] = END
    return torch.cat([openings, ended], 1)


def expected(model, batch, openings):
    """The openings' cross-entropy over all words, and SMILE of what follows them, by formula."""
    logits, labels = undo(model)(**batch).logits, batch["labels"]
    first = F.cross_entropy(
        logits[:, :openings].flatten(0, 1), labels[:, :openings].flatten(), reduction="sum"
    )
    rest, words = naive_smile(logits[:, openings:], labels[:, openings:])
    return (first + rest) / (words + 3 * openings)


def assert_is(expected, model, batch, objective=None):
    for from_hidden in (False, True):
        use_smile(model, objective, from_hidden)
        torch.testing.assert_close(model(**batch).loss, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [BART, VED])
def test_a_beginning_of_a_text_is_scored_over_all_words_and_is_none_of_them(name):
    """BART's `<s>`; the [CLS] of a BERT that is a decoder, which begins with it, too."""
    model, batch, *_ = made(name)
    batch["labels"] = labels = opened(batch["labels"], START)
    loss = expected(model, batch, 1)
    own = model(**batch)
    assert_is(loss, model, batch)
    assert_is(own.loss.double(), model, batch, Objective("mle", label_smoothing=0.0))
    found = compute_loss_func(made(name).model)(own, labels)
    torch.testing.assert_close(found, loss, atol=1e-6, rtol=0)


@needs(WHISPER)
def test_language_and_task_of_whisper():
    model, batch, *_ = made(WHISPER)
    generation = model.generation_config
    generation.lang_to_id = {"<|en|>": LANGUAGE, "<|fr|>": OTHER}
    generation.task_to_id = {"transcribe": TASK}
    generation.no_timestamps_token_id = NO_TIMES
    languages = torch.tensor([[LANGUAGE], [OTHER], [LANGUAGE]])
    after = torch.tensor([START, TASK, NO_TIMES]).expand(3, -1)
    openings = torch.cat([after[:, :1], languages, after[:, 1:]], 1)
    batch["labels"] = opened(batch["labels"], openings)
    assert_is(expected(model, batch, 4), model, batch)


def test_tokens_that_generation_is_forced_to_begin_with():
    model, batch, *_ = made(BART)
    model.config.forced_decoder_ids = [[1, LANGUAGE], [2, TASK]]
    batch["labels"] = labels = opened(batch["labels"], LANGUAGE, TASK)
    loss = expected(model, batch, 2)
    assert_is(loss, model, batch)
    labels[:, 3] = LANGUAGE  # later it is a word
    loss = expected(model, batch, 2)
    assert_is(loss, model, batch)


def multilingual(name):
    torch.manual_seed(0)
    sizes = {**hf_models.SIZES["bart"], "vocab_size": hf_models.VOCABULARY}
    sizes.update(dropout=0.0, attention_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0)
    tokens = {"pad_token_id": 0, "bos_token_id": START, "eos_token_id": END}
    config = getattr(transformers, name.replace("ForConditionalGeneration", "Config"))(
        **sizes, **tokens, max_position_embeddings=32, decoder_start_token_id=END
    )
    batch = dict(made(BART).batch)
    batch["labels"] = opened(batch["labels"], torch.tensor([[LANGUAGE], [OTHER], [LANGUAGE]]))
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
    loss = expected(model, batch, 1)
    assert_is(loss, model, batch)


@pytest.mark.parametrize(
    ("spec", "first"),
    [({"truncation": 0.5, "smile": 0.5}, None), ("smile", False), ({"mle": 0.5, "smile": 0.5}, 0)],
    ids=["truncation", "no first-token MLE", "MLE in a mixture scores the beginning"],
)
def test_captions_without_their_beginning(spec, first):
    model, batch, *_ = made(BART)
    batch["labels"] = labels = opened(batch["labels"], START)
    logits, objective = model(**batch).logits, Objective(spec, first_token_mle=first)
    begins = (torch.arange(labels.size(1)) == 0).expand(3, -1)
    if "mle" in objective.weights:
        expected = objective(logits, labels, (~begins).long())
    else:
        expected = objective(logits, labels.masked_fill(begins, -100))
    assert_is(expected.loss, model, batch, objective)


def test_the_trainers_division_is_by_what_is_scored(tmp_path):
    """All special tokens with SMILE, and none of them with truncation."""
    from tests.smile import trainer_parts

    torch.manual_seed(0)
    config = transformers.BartConfig(**{**hf_models.SIZES["bart"], "vocab_size": 24, "dropout": 0})
    model = transformers.BartForConditionalGeneration(config).double()
    model.config.pad_token_id, model.config.decoder_start_token_id = trainer_parts.PAD, 2
    model.config.bos_token_id = 1
    rows = [{**row, "labels": [1, *row["input_ids"]]} for row in trainer_parts.rows()]
    words = sum(len(row["input_ids"]) for row in rows)
    for objective, tokens in (("smile", words + len(rows)), ({"smile": 1, "truncation": 1}, words)):
        trainer = trainer_parts.make(
            trainer_parts.SmileSeq2SeqTrainer, tmp_path, rows, model, objective
        )
        batches = iter(trainer.get_train_dataloader())
        (batch,), items = trainer.get_batch_samples(batches, 1, torch.device("cpu"))
        assert items == tokens
        loss = use_smile(model, objective)(**batch).loss
        trainer.train()
        (entry,) = trainer_parts.logs(trainer)
        assert entry["loss"] == pytest.approx(loss.item(), rel=1e-5)


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


@needs(LLAVA)
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


@needs(LLAVA)
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


@needs(LLAVA)
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


@needs(LLAVA)
@pytest.mark.parametrize("packed", [False, True])
def test_a_first_token_that_is_not_scored_is_no_prompt(packed):
    tokens = [START, *IMAGE, *TEXT]
    scored = [True] + [False] * 4 + [True] * 4
    model, batch = llava(*tokens * (1 + packed), scored=scored * (1 + packed), rows=1)
    if packed:
        batch["pixel_values"] = batch["pixel_values"].repeat(2, 1, 1, 1)
        batch["position_ids"] = torch.arange(9).repeat(2)[None]
    loss = model(**batch).loss
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == START, -100)
    torch.testing.assert_close(loss, model(**batch).loss)
