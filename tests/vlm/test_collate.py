"""Model inputs and scored tokens; a photo with several captions is encoded once."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from smile import Objective
from tests.smile.hf_models import knows_float64
from tests.vlm import folders
from tests.vlm.batches import CAPTIONS, CHATS, library_batch, rows
from tests.vlm.folders import NAMES, with_marks
from vlm.collate import collate
from vlm.image_batch import ImageBatch


def check_same(found, expected):
    torch.testing.assert_close(dict(found), {key: expected[key] for key in found})


@pytest.mark.parametrize("name", with_marks(NAMES))
def test_questions_of_mixed_sizes_are_the_processors_batch(name, make_vlm, vlm_folder, vlm_photos):
    captioner = make_vlm(name)
    images = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])
    found = collate(images.select(captioner.input_names).items, folders.PAD, left=True)
    expected = library_batch(name, vlm_folder, vlm_photos)
    assert {"input_ids", "pixel_values"} & found.keys()
    check_same(found, expected)


@pytest.mark.parametrize("name", with_marks([*CHATS, "PaliGemmaForConditionalGeneration"]))
def test_questions_with_their_answers_are_the_processors_batch(
    name, make_vlm, vlm_folder, vlm_photos
):
    captioner = make_vlm(name)
    image = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])
    batch, labels = rows(captioner, image, CAPTIONS)
    expected = library_batch(name, vlm_folder, vlm_photos, [text for (text,) in CAPTIONS])
    for seen in (batch, expected):  # the values at padding are never read
        real = seen["attention_mask"] == 1
        for key in {"cross_attention_mask", "token_type_ids"} & seen.keys():
            seen[key] = seen[key][real]
    if name.startswith("PaliGemma"):
        answers = torch.zeros_like(labels).masked_scatter(real, expected["token_type_ids"]) == 1
        torch.testing.assert_close(labels, expected["labels"].where(answers, -100))
    check_same(batch, expected)


@pytest.mark.parametrize("name", with_marks(NAMES))
def test_the_caption_and_the_end_are_scored_and_nothing_else(name, make_vlm, vlm_photos):
    captioner = make_vlm(name)
    image = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos[:2]])
    # The image's token would be one more image, and the end another one.
    captions = [["a red disc", "grass <image><end> right"], ["two blue block", "snow"]]
    batch, labels = rows(captioner, image, captions)
    words = captioner.tokenizer.tokenizer
    said = [["a", "red", "disc"], ["grass", "right"], ["two", "blue", "block"], ["snow"]]
    inputs = batch["decoder_input_ids"] if captioner.is_encoder_decoder else batch["input_ids"]
    for row, ids, text in zip(labels, inputs, said):
        expected = [*words.convert_tokens_to_ids(text), folders.END]
        assert row[row != -100].tolist() == expected
        first = int((row != -100).int().argmax())
        assert (row[first : first + len(expected)] != -100).all()
        # Of an encoder-decoder the input is one behind the labels.
        first += captioner.is_encoder_decoder
        assert ids[first : first + len(text)].tolist() == expected[:-1]
        before = ids[:first].tolist()
        assert not before or before == [*captioner.decoder_prefix] or captioner.decoder_prefix == []


def test_a_long_caption_is_cut_and_ended(make_vlm, vlm_photos):
    captioner = make_vlm("GitForCausalLM", max_tokens=3)
    image = ImageBatch([captioner.prompt_processor(vlm_photos[0])])
    _, labels = rows(captioner, image, [["a red disc on sand"]])
    words = captioner.tokenizer.tokenizer.convert_ids_to_tokens(labels[0, 1:].tolist())
    assert words == ["a", "red", "<end>"]


THREE_EACH = [["a red disc", "snow", "two large blue block"], ["a ring on sand", "grass", "a star"]]
THREE_EACH.append(["night", "small green ring left of the star", "a disc"])


def loss_and_gradients(captioner, loss):
    captioner.zero_grad()
    loss.backward()
    return {k: p.grad.clone() for k, p in captioner.named_parameters() if p.grad is not None}


def pixels_of(image):
    return sum(item["pixel_values"].numel() for item in image.items)


@pytest.mark.parametrize("name", with_marks(NAMES))
def test_a_photo_is_encoded_once_for_all_its_captions(name, make_vlm, vlm_photos):
    captioner = make_vlm(name, Objective({"mle": 0.3, "smile": 0.7})).double()
    knows_float64(captioner.model)
    image = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])
    for item in image.items:
        item.update({k: v.double() for k, v in item.items() if v.is_floating_point()})
    seen = []
    convolutions = (torch.nn.Conv2d, torch.nn.Conv3d)  # the first one reads pixels
    reads = next(part for part in captioner.modules() if isinstance(part, convolutions))
    reads.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    output = captioner(image, THREE_EACH)
    found = loss_and_gradients(captioner, output.loss)
    (pixels,) = seen
    assert pixels.numel() == pixels_of(image)
    batch, labels = rows(captioner, image, THREE_EACH)
    loss = captioner.model(**batch, labels=labels).loss
    assert seen[1].numel() == 3 * pixels_of(image)
    torch.testing.assert_close(output.loss, loss)
    # Some make a part of it in float32.
    torch.testing.assert_close(found, loss_and_gradients(captioner, loss), rtol=1e-4, atol=1e-7)
    with torch.no_grad():
        logits, _ = captioner.predictions(image, THREE_EACH)
    assert len(logits) == 9 and seen[2].numel() == pixels_of(image)


def test_features_that_are_more_than_those_among_the_words_are_not_repeated(make_vlm, vlm_photos):
    captioner = make_vlm("Idefics3ForConditionalGeneration")
    image = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])
    expected = captioner(image, THREE_EACH).loss
    base, calls = captioner.model.model, []

    def with_more(*arguments, **named):
        calls.append(named)
        output = type(base).get_image_features(base, *arguments, **named)
        output["of_each_layer"] = output.last_hidden_state
        return output

    base.get_image_features = with_more
    for _ in range(2):
        torch.testing.assert_close(captioner(image, THREE_EACH).loss, expected)
    assert [len(call.get("pixel_values", ())) for call in calls] == [3, 0, 0]  # by name, of B
