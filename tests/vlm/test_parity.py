"""Loss, gradients and captions equal the library's, also with a prompt for each photo."""

import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from decoding import DecodingSettings, SettingsError
from smile import Objective
from smile.hf import undo
from tests.smile.hf_models import in_float64, knows_float64
from tests.vlm import folders
from tests.vlm.batches import CAPTIONS, CHATS, library_batch, rows
from tests.vlm.folders import NAMES, with_marks
from vlm.image_batch import ImageBatch
from vlm.library import load_model, load_parts
from vlm.prompt import GUIDED_FAMILIES, NO_TEXT_FAMILY, PromptProcessor

KINDS = {kind.replace("_", "") for kind in GUIDED_FAMILIES}
GUIDED_NAMES = [name for name in NAMES if name.partition("For")[0].lower() in KINDS]
GREEDY = DecodingSettings(max_length=7, min_length=2, num_beams=1)
BEAMS = replace(GREEDY, num_beams=3, num_return=2, length_penalty=0.5)
SCALE = 2.5
GUIDED_GREEDY = replace(GREEDY, guidance_scale=SCALE)
SAMPLES = replace(GUIDED_GREEDY, sample=True, num_return=2, top_p=0.95, repetition_penalty=1.2)
CASES = [*with_marks(CHATS[:1], GREEDY), *with_marks(NAMES, BEAMS)]
CASES += [*with_marks(GUIDED_NAMES, GUIDED_GREEDY), *with_marks(GUIDED_NAMES, SAMPLES)]


def image_of(captioner, photos):
    return ImageBatch([captioner.prompt_processor(photo) for photo in photos])


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
def test_the_objective_is_that_of_the_logits(name, make_vlm, vlm_photos):
    objective = Objective({"mle": 0.3, "smile": 0.7})
    captioner = make_vlm(name, objective).double()
    knows_float64(captioner.model)
    image = image_of(captioner, vlm_photos)
    for item in image.items:
        item.update({k: in_float64(v) for k, v in item.items()})
    torch.manual_seed(0)  # of dropout
    output = captioner.train()(image, CAPTIONS)
    torch.manual_seed(0)
    with torch.no_grad():
        batch, labels = rows(captioner, image, CAPTIONS)
        logits = undo(captioner.model)(**batch).logits
        logits = logits[:, -labels.size(1) :]  # GIT and BLIP-2 put the image in front
        if not captioner.is_encoder_decoder:
            logits, labels = logits[:, :-1], labels[:, 1:]
        expected = objective(logits, labels)
    torch.testing.assert_close(output.loss, expected.loss)
    assert output.tokens == expected.tokens == 4 + 7 + 3
    torch.testing.assert_close(dict(output.parts), dict(expected.parts))


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_captions_are_those_of_generate(name, settings, make_vlm, vlm_folder, vlm_photos):
    captioner = make_vlm(name)
    sharpened(captioner.model)
    torch.manual_seed(0)
    found = captioner.generate_details(image_of(captioner, vlm_photos), settings)
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
def test_guided_captions_and_scores_follow_the_formula(name, make_vlm, vlm_folder, vlm_photos):
    if name.startswith("PaliGemma") and sys.version_info < (3, 11):
        pytest.skip("its transformers reads the prompt without causal attention")
    captioner = make_vlm(name)
    sharpened(captioner.model)
    image = image_of(captioner, vlm_photos)
    found = captioner.generate_details(image, GUIDED_GREEDY)
    for n in range(len(image)):
        ids, scores, prompt = [], [], prompt_without_image(name, vlm_folder)
        while len(ids) < GREEDY.max_length and folders.END not in ids:
            own, _ = captioner.score_tokens(image[n : n + 1], torch.tensor([*ids, 0]))
            own = own[-1].log_softmax(-1)  # log p(w | c)
            other = captioner.model(input_ids=prompt).logits[0, -1].log_softmax(-1)  # log p(w | u)
            guided = (other + SCALE * (own - other)).log_softmax(-1)
            banned = torch.tensor([folders.END] * (len(ids) < GREEDY.min_length), dtype=torch.int64)
            ids.append(int(guided.index_fill(0, banned, -torch.inf).argmax()))
            scores.append([guided[ids[-1]], own[ids[-1]]])
            prompt = torch.cat([prompt, torch.tensor([ids[-1:]])], 1)
        assert found.token_ids[n, 0, : len(ids)].tolist() == ids
        of_photo = torch.stack([found.scores[n, 0], found.own_scores[n, 0]]).float()
        torch.testing.assert_close(of_photo, torch.tensor(scores).mean(0), rtol=1e-4, atol=1e-5)
    assert (found.scores - found.own_scores).abs().max() > 1e-3  # guidance has an effect


def test_a_scale_of_1_is_plain_whatever_the_model_comes_with(make_vlm, vlm_photos):
    captioner = make_vlm(CHATS[0])
    image = image_of(captioner, vlm_photos)
    expected = captioner.generate_details(image, GREEDY)
    captioner.model.generation_config.guidance_scale = 3.0
    found = captioner.generate_details(image, GREEDY)
    assert found.token_ids.equal(expected.token_ids) and found.scores.equal(expected.scores)


@pytest.mark.parametrize("name", with_marks(NAMES))
def test_teacher_forced_scores_are_those_of_generation(name, make_vlm, vlm_photos):
    captioner = make_vlm(name)
    image = image_of(captioner, vlm_photos)[1:2]
    found = captioner.generate_details(image, GREEDY)
    ids = found.token_ids[0, 0]
    ids = ids[ids != captioner.tokenizer.pad]
    with torch.inference_mode():
        logits, _ = captioner.score_tokens(captioner.encode(image), ids)
    logprobs = logits.double().log_softmax(-1).gather(1, ids.unsqueeze(1))
    assert len(logits) == len(ids)
    torch.testing.assert_close(logprobs.mean(), found.scores[0, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [NAMES[-1], "Florence2ForConditionalGeneration"])
def test_the_attention_map_is_the_cross_attention_to_the_image(name, make_vlm, vlm_photos):
    captioner = make_vlm(name)
    image = image_of(captioner, vlm_photos[:1])
    ids = torch.tensor(captioner.tokenizer.ids("a red disc", 20))
    with torch.no_grad():
        _, attention_map = captioner.score_tokens(image, ids)
        batch, _ = rows(captioner, image, [["a red disc"]])
        implementation = captioner.model.config._attn_implementation
        captioner.model.set_attn_implementation("eager")
        output = captioner.model(**batch, output_attentions=True)
    weights = torch.stack(output.cross_attentions).mean((0, 2))[0]  # over layers and heads
    expected = weights[-4:, 1:5]  # two by two patches, after one place of all of them
    torch.testing.assert_close(attention_map, expected / expected.sum(1, keepdim=True))
    assert implementation != "eager"
    chat = make_vlm(CHATS[0])
    assert chat.score_tokens(image_of(chat, vlm_photos[:1]), ids)[1] is None


PROMPTS = ["describe two small disc on snow", None, "image of the night"]
FIXED = ("VisionEncoderDecoder", "Florence2")  # no text, or a task instead of a prompt
ASKED = [name for name in NAMES if not name.startswith(FIXED)]


@pytest.mark.parametrize("name", with_marks(ASKED))
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


def test_prompts_that_cannot_be_used_are_one_line(make_vlm, vlm_photos):
    photo = vlm_photos[0]
    git = make_vlm("GitForCausalLM").prompt_processor
    room = git.parts.config.max_position_embeddings
    short = PromptProcessor(
        git.parts, git.prompt, caption_length=room - git(photo, "describe")["input_ids"].size(1)
    )
    short(photo, "describe")
    with pytest.raises(ValueError, match=f"has {room}: shorten the prompt 'describe two"):
        short(photo, PROMPTS[0] + " left right above below")
    name = next(name for name in NAMES if name.partition("For")[0].lower() in GUIDED_FAMILIES)
    captioner = make_vlm(name)
    processor = captioner.prompt_processor
    room = processor.parts.config.get_text_config().max_position_embeddings
    with pytest.raises(ValueError, match=f"has {room}: shorten the prompt 'disc disc"):
        processor(photo, "disc " * room)
    with pytest.raises(SettingsError, match="needs one prompt for all images of a batch"):
        items = [captioner.prompt_processor(photo, text) for text in PROMPTS]
        settings = replace(BEAMS, num_beams=1, num_return=1, guidance_scale=2.0)
        captioner.generate_details(ImageBatch(items), settings)
    fixed = make_vlm("VisionEncoderDecoderModel").prompt_processor
    assert fixed.family == NO_TEXT_FAMILY
    with pytest.raises(ValueError, match="has no text input"):
        fixed(photo, "describe")
    assert fixed(photo, "").keys() == fixed(photo).keys() == {"pixel_values"}
