"""Inputs, loss and captions equal the library's, also with a prompt for each photo."""

import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from captioning.models.prompts import caption_lists
from captioning.runtime.errors import UserError
from decoding import DecodingSettings
from smile import Objective
from tests.programs import raises_line
from tests.vlm import folders
from tests.vlm.folders import NAMES, with_marks
from vlm.batch import ImageBatch, collate
from vlm.library import load_model, load_parts
from vlm.prompt import GUIDED_FAMILIES, PromptProcessor

CAPTIONS = [["a red disc"], ["two large blue block on sand"], ["a ring"]]
PLAIN = ("PaliGemma", "Florence2", "Blip2", "Git", "VisionEncoderDecoder")  # without a template
CHATS = [name for name in NAMES if not name.startswith(PLAIN)]
KINDS = {kind.replace("_", "") for kind in GUIDED_FAMILIES}
GUIDED_NAMES = [name for name in NAMES if name.partition("For")[0].lower() in KINDS]
GREEDY = DecodingSettings(max_length=7, min_length=2, num_beams=1)
BEAMS = replace(GREEDY, num_beams=3, num_return=2, length_penalty=0.5)
SCALE = 2.5
GUIDED_GREEDY = replace(GREEDY, guidance_scale=SCALE)
SAMPLES = replace(GUIDED_GREEDY, sample=True, num_return=2, top_p=0.95, repetition_penalty=1.2)
CASES = [*with_marks(CHATS[:1], GREEDY), *with_marks(NAMES, BEAMS)]
CASES += [*with_marks(GUIDED_NAMES, SAMPLES), *with_marks(GUIDED_NAMES[:1], GUIDED_GREEDY)]


def batch_of(captioner, photos):
    return ImageBatch([captioner.prompt_processor(photo) for photo in photos])


def conversation(photo, prompt, caption=None):
    asked = [{"type": "image", "image": photo}, {"type": "text", "text": prompt}]
    said = [{"role": "assistant", "content": [{"type": "text", "text": caption}]}]
    return [{"role": "user", "content": asked}, *(said if caption else [])]


def library_batch(name, vlm_folder, photos, captions=None):
    """The batch of the library's own processor: prompts, or with captions prompts and answers."""
    folder, prompt = vlm_folder(name)
    parts = load_parts(folder)
    if name == "VisionEncoderDecoderModel":
        return parts.processor(photos, return_tensors="pt")
    side = "right" if captions else "left"
    how = {"padding": True, "padding_side": side, "return_tensors": "pt"}
    if name in CHATS:
        said = captions or [None] * len(photos)
        chats = [conversation(photo, prompt, text) for photo, text in zip(photos, said)]
        how = {"processor_kwargs": how, "tokenize": True, "return_dict": True}
        how.update(return_tensors="pt", add_generation_prompt=captions is None)
        return parts.processor.apply_chat_template(chats, **how)
    text = f"<image>{prompt}" if name.startswith("PaliGemma") else prompt
    if captions:
        how["suffix"] = captions
    made = parts.processor(text=[text] * len(photos), images=[[x] for x in photos], **how)
    if name == "GitForCausalLM":  # the processor ends the prompt
        return {k: v[:, :-1] if v.dim() == 2 else v for k, v in made.items()}
    return made


def sharpened(model):
    """Weights of a larger scale, so that guidance changes captions."""
    for weight in model.parameters():
        weight.data *= 3 if weight.dim() > 1 else 1
    return model


def prompt_without_image(name, vlm_folder):
    folder, prompt = vlm_folder(name)
    chat = ("user", *prompt.split(), "<end>", "<start>", "assistant")
    text = ["<start>", *(chat if name in CHATS else prompt.split())]
    return torch.tensor([load_parts(folder).tokenizer.convert_tokens_to_ids(text)])


@pytest.mark.parametrize("name", with_marks(NAMES))
def test_photos_of_mixed_sizes_are_the_processors_batch(name, make_vlm, vlm_folder, vlm_photos):
    captioner = make_vlm(name)
    image = batch_of(captioner, vlm_photos)
    found = collate(image.items, folders.PAD, left=True)
    found = {key: found[key] for key in found.keys() & captioner.input_names}
    assert {"input_ids", "pixel_values"} & found.keys()
    expected = library_batch(name, vlm_folder, vlm_photos)
    torch.testing.assert_close(found, {key: expected[key] for key in found})
    is_paligemma = name.startswith("PaliGemma")
    if not (name in CHATS or is_paligemma):
        return
    found, labels = captioner.training_batch(image, CAPTIONS)
    expected = library_batch(name, vlm_folder, vlm_photos, [text for (text,) in CAPTIONS])
    for inputs in (found, expected):  # the values at padding are never read
        real = inputs["attention_mask"] == 1
        for key in {"cross_attention_mask", "token_type_ids"} & inputs.keys():
            inputs[key] = inputs[key][real]
    if is_paligemma:
        answers = torch.zeros_like(labels).masked_scatter(real, expected["token_type_ids"]) == 1
        torch.testing.assert_close(labels, expected["labels"].where(answers, -100))
    torch.testing.assert_close(found, {key: expected[key] for key in found})


@pytest.mark.parametrize("name", with_marks(NAMES))
def test_the_caption_and_the_end_are_scored_and_nothing_else(name, make_vlm, vlm_photos):
    captioner = make_vlm(name, max_tokens=4)
    # The image token would be one more image, and the end token another end.
    words = captioner.tokenizer.tokenizer
    grass = f"grass {getattr(words, 'image_token', '<image>')}<end> right"
    captions = [["a red disc on sand", grass], ["two blue block", "snow"]]
    batch, labels = captioner.training_batch(batch_of(captioner, vlm_photos[:2]), captions)
    expected = ["a red disc <end>", "grass right <end>", "two blue block <end>", "snow <end>"]
    is_label, prefix = labels != -100, captioner.decoder_prefix
    for n, text in enumerate(expected):
        ids = words.convert_tokens_to_ids(text.split())
        assert labels[n][is_label[n]].tolist() == ids
        if prefix:  # the decoder's inputs are shifted by one
            inputs = batch["decoder_input_ids"][n, : len(prefix) + len(ids) - 1]
            assert inputs.tolist() == [*prefix, *ids[:-1]]
        else:
            assert batch["input_ids"][n][is_label[n]].tolist() == ids


@pytest.mark.parametrize("name", with_marks(NAMES))
def test_the_objective_is_that_of_the_predictions(name, make_vlm, vlm_photos):
    """tests/smile has the loss of each model of transformers."""
    objective = Objective({"mle": 0.3, "smile": 0.7})
    captioner = make_vlm(name, objective)
    image = batch_of(captioner, vlm_photos[:2])
    captions = [["a red disc", "two large blue block on sand"], ["a ring", "snow"]]
    output, (logits, labels) = captioner(image, captions), captioner.predictions(image, captions)
    assert logits.shape[:2] == labels.shape and (labels[:, 0] != -100).any()
    torch.testing.assert_close(output, objective(logits, labels), rtol=1e-4, atol=1e-5)
    assert output.tokens == 4 + 7 + 3 + 2


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_captions_are_those_of_generate(name, settings, make_vlm, vlm_folder, vlm_photos):
    captioner = make_vlm(name)
    sharpened(captioner.model).generation_config.guidance_scale = 9.0  # the settings' holds
    torch.manual_seed(0)
    found = captioner.generate_details(batch_of(captioner, vlm_photos), settings)
    own = sharpened(load_model(vlm_folder(name)[0], pretrained=True))
    inputs = dict(library_batch(name, vlm_folder, vlm_photos))
    if settings.guidance_scale != 1:
        prompt = prompt_without_image(name, vlm_folder)
        inputs["negative_prompt_ids"] = prompt.expand(3 * settings.num_return, -1)
    if name.startswith("Florence2"):  # a released one is told to begin so
        own.generation_config.forced_bos_token_id = folders.START
    same = ("guidance_scale", "top_p", "top_k", "repetition_penalty", "length_penalty")
    torch.manual_seed(0)
    tokens = own.generate(
        **inputs,
        do_sample=settings.sample,
        num_beams=settings.num_beams,
        num_return_sequences=settings.num_return,
        min_new_tokens=settings.min_length + len(captioner.decoder_prefix[1:]),
        max_new_tokens=settings.max_length + len(captioner.decoder_prefix[1:]),
        **{key: getattr(settings, key) for key in same},
    )
    start = len(captioner.decoder_prefix) or inputs["input_ids"].size(1)
    expected = tokens[:, start:]
    ended = (expected == folders.END).cumsum(1) - (expected == folders.END).int() > 0
    assert found.token_ids.shape[:2] == (3, settings.num_return)
    assert found.token_ids.flatten(0, 1).equal(expected.masked_fill(ended, -1))
    words = load_parts(vlm_folder(name)[0]).tokenizer
    texts = words.batch_decode(expected, skip_special_tokens=True)
    assert [text for texts in found.captions for text in texts] == [text.strip() for text in texts]


@pytest.mark.parametrize("name", with_marks(GUIDED_NAMES))
@torch.no_grad()
def test_scores_of_guided_captions_follow_the_formula(name, make_vlm, vlm_folder, vlm_photos):
    if name.startswith("PaliGemma") and sys.version_info < (3, 11):
        pytest.skip("its transformers reads the prompt without causal attention")
    captioner = make_vlm(name)
    sharpened(captioner.model)
    image, prompt = batch_of(captioner, vlm_photos), prompt_without_image(name, vlm_folder)
    found = captioner.generate_details(image, GUIDED_GREEDY)
    for n in range(len(image)):
        ids = found.token_ids[n, 0]
        ids = ids[ids >= 0]
        own = captioner.score_tokens(image[n : n + 1], ids)[0].log_softmax(-1)  # log p(w | c)
        without_image = captioner.model(input_ids=torch.cat([prompt, ids[None, :-1]], 1))
        other = without_image.logits[0, -len(ids) :].log_softmax(-1)  # log p(w | u)
        guided = (other + SCALE * (own - other)).log_softmax(-1)
        expected = [x.gather(1, ids[:, None]).double().mean() for x in (guided, own)]
        scores = [found.scores[n, 0], found.own_scores[n, 0]]
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    assert (found.scores - found.own_scores).abs().max() > 1e-3  # guidance has an effect


@pytest.mark.parametrize("name", [NAMES[-1], "Florence2ForConditionalGeneration"])
def test_the_attention_map_is_the_cross_attention_to_the_image(name, make_vlm, vlm_photos):
    captioner = make_vlm(name)
    image = batch_of(captioner, vlm_photos[:1])
    ids = torch.tensor(captioner.tokenizer.ids("a red disc", 20))
    with torch.no_grad():
        _, attention_map = captioner.score_tokens(image, ids)
        batch, _ = captioner.training_batch(image, [["a red disc"]])
        implementation = captioner.model.config._attn_implementation
        captioner.model.set_attn_implementation("eager")
        output = captioner.model(**batch, output_attentions=True)
    weights = torch.stack(output.cross_attentions).mean((0, 2))[0]  # over layers and heads
    expected = weights[-4:, 1:5]  # two by two patches, after one place of all of them
    torch.testing.assert_close(attention_map, expected / expected.sum(1, keepdim=True))
    assert implementation != "eager"
    other = make_vlm("Blip2ForConditionalGeneration, T5")  # returns no attention
    assert other.score_tokens(batch_of(other, vlm_photos[:1]), ids)[1] is None


PROMPTS = ["describe two small disc on snow", None, "image of the night"]
FIXED = ("VisionEncoderDecoder", "Florence2")  # no text, or a task instead of a prompt
WITH_PROMPT = [name for name in NAMES if not name.startswith(FIXED)]


@pytest.mark.parametrize("name", with_marks(WITH_PROMPT))
def test_captions_and_loss_are_those_of_each_prompt_alone(name, make_vlm, vlm_photos):
    captioner = make_vlm(name)
    sharpened(captioner.model)
    processor = captioner.prompt_processor
    image = ImageBatch([processor(photo, text) for photo, text in zip(vlm_photos, PROMPTS)])
    together = captioner.generate_details(image, BEAMS)
    output, total = captioner(image, CAPTIONS), 0.0
    for n, text in enumerate(PROMPTS):
        own = processor if text is None else PromptProcessor(processor.parts, text)
        one = ImageBatch([own(vlm_photos[n])])
        alone = captioner.generate_details(one, BEAMS)
        assert together.captions[n] == alone.captions[0]
        torch.testing.assert_close(together.scores[n], alone.scores[0], rtol=1e-4, atol=1e-5)
        part = captioner(one, CAPTIONS[n : n + 1])
        total = total + part.loss * part.tokens
    torch.testing.assert_close(output.loss, total / output.tokens, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["GitForCausalLM", CHATS[0]])
def test_prompts_that_cannot_be_used_are_one_line(name, make_vlm, vlm_photos):
    captioner = make_vlm(name)
    parts, photo = captioner.prompt_processor.parts, vlm_photos[0]
    limit = parts.config.get_text_config().max_position_embeddings
    length = PromptProcessor(parts, "describe")(photo)["input_ids"].size(1)
    exact = PromptProcessor(parts, "describe", caption_length=limit - length)
    exact(photo)
    with pytest.raises(ValueError, match=f"has {limit}: shorten the prompt 'describe two"):
        exact(photo, "describe two")
    items = [captioner.prompt_processor(photo, text) for text in PROMPTS]
    with raises_line(UserError, "needs one prompt for all images of a batch"):
        caption_lists(captioner, captioner, ImageBatch(items), GUIDED_GREEDY, [None] * 3)
