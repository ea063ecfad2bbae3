"""transformers' own BLIP from a converted folder: the same names, numbers and captions."""

import pytest
import torch
import transformers
from PIL import Image

from BLIP.checkpoint import settings_of
from BLIP.convert import hf_config, save_hf, to_hf_names
from BLIP.from_checkpoint import captioner_of
from BLIP.sizes import read_med_config, vit_sizes
from captioning.data.image import evaluation_transform
from decoding import DecodingSettings
from smile import Objective

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"),
    reason=f"transformers {transformers.__version__} has no BLIP",
)
TIED = [f"text_decoder.cls.predictions.decoder.{name}" for name in ("weight", "bias")]
LENGTHS = {"max_length": 20, "min_length": 5}
TEXTS = ["a picture of a red ball", "the dogs", "a man with a box", "cat"]


def same_logits(captioner, model, image, atol=1e-5, rtol=0):
    """Assert that logits of TEXTS are equal; return the inputs of transformers' model."""
    tokens = captioner.tokenizer.encode(TEXTS, 40)
    mask = (tokens != captioner.tokenizer.pad).long()
    inputs = {"pixel_values": image, "input_ids": tokens, "attention_mask": mask}
    ours = captioner.text_decoder.logits(tokens, captioner.visual_encoder(image))
    expected = model(**inputs).logits
    torch.testing.assert_close(ours[mask == 1], expected[mask == 1], atol=atol, rtol=rtol)
    return inputs


@torch.no_grad()
def test_same_logits_loss_and_greedy_captions_and_the_processors_pixels(make_captioner, tmp_path):
    captioner = make_captioner(image_size=96, objective=Objective("mle", label_smoothing=0.1))
    save_hf(captioner, tmp_path)
    model, problems = transformers.BlipForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(problems.values()), problems
    model, image = model.eval(), torch.randn(len(TEXTS), 3, 96, 96)
    inputs = same_logits(captioner, model, image, atol=1e-4, rtol=1e-4)
    tokens, mask = inputs["input_ids"], inputs["attention_mask"]
    labels = tokens.masked_fill(mask == 0, -100)  # transformers would score padding
    ours = captioner.text_decoder(tokens, captioner.visual_encoder(image), labels).loss
    torch.testing.assert_close(model(**inputs, labels=labels).loss, ours)
    model.save_pretrained(tmp_path / "again")
    again = captioner_of(str(tmp_path / "again"), tokenizer=str(tmp_path))
    torch.testing.assert_close(again.state_dict(), captioner.state_dict(), rtol=0, atol=0)
    prompt = captioner.prompt_ids.expand(4, -1)
    expected = model.generate(
        pixel_values=image,
        # It cuts the last token, where a tokeniser would have put [SEP].
        input_ids=torch.cat([prompt, torch.full((4, 1), captioner.tokenizer.end)], dim=1),
        num_beams=1,
        do_sample=False,
        **LENGTHS,
    )
    settings = DecodingSettings(num_beams=1, **LENGTHS)
    generated = captioner.generate_details(image, settings).token_ids[:, 0]
    assert generated.tolist() == expected[:, : generated.size(1)].tolist()
    assert (expected[:, generated.size(1) :] == captioner.tokenizer.pad).all()
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    assert isinstance(processor, transformers.BlipProcessor)
    enc = captioner.tokenizer.bert.token_to_id("[ENC]")
    assert processor.tokenizer.convert_tokens_to_ids("[ENC]") == enc
    photo = Image.radial_gradient("L").convert("RGB")
    inputs = processor(images=photo, text="a picture of", return_tensors="pt")
    image = evaluation_transform(96)(photo).unsqueeze(0)
    # Theirs resizes with torchvision, ours with Pillow: a level of 255 is 0.015.
    torch.testing.assert_close(inputs.pixel_values, image, atol=0.04, rtol=0)
    words = model.generate(**inputs, **LENGTHS, num_beams=1, do_sample=False)[0]
    ours = captioner.generate(image, settings)[0]
    caption = processor.decode(words, skip_special_tokens=True)
    assert ours and caption == f"a picture of {ours}"


@pytest.mark.parametrize("vit", ["base", "large"])
def test_every_name_and_shape_of_base_and_large(make_captioner, vit):
    with torch.device("meta"):
        captioner = make_captioner(vit=vit, image_size=384, med_config={})
        config = transformers.BlipConfig(**hf_config(captioner))
        expected = transformers.BlipForConditionalGeneration(config).state_dict()
    state = to_hf_names(captioner.state_dict())
    assert {k: v.shape for k, v in state.items()} == {
        key: value.shape for key, value in expected.items() if key not in TIED
    }
    assert len(captioner.state_dict()) == {"base": 474, "large": 618}[vit]
    settings = settings_of(hf_config(captioner))
    assert settings["vit"] == vit_sizes(vit).model_dump(include=settings["vit"].keys())
    assert settings["image_size"] == 384
    assert read_med_config(settings["med_config"]) == read_med_config({})


@torch.no_grad()
def test_a_folder_that_transformers_made_gives_its_logits_and_captions(
    make_captioner, vocabulary, tmp_path
):
    """Its default of layer_norm_eps, 1e-5, is not BLIP's, and it has no prompt."""
    config = hf_config(make_captioner())
    del config["vision_config"]["layer_norm_eps"], config["prompt"]
    config["text_config"]["initializer_range"] = 0.3
    model = transformers.BlipForConditionalGeneration(transformers.BlipConfig(**config)).eval()
    model.save_pretrained(tmp_path / "hf")
    found = captioner_of(str(tmp_path / "hf"), tokenizer=str(vocabulary))
    images = 0.01 * torch.randn(len(TEXTS), 3, 48, 48)  # so that the epsilon matters
    same_logits(found, model, images)
    expected = model.generate(pixel_values=images, num_beams=1, do_sample=False, **LENGTHS)
    settings = DecodingSettings(num_beams=1, **LENGTHS)
    ids = found.generate_details(images, settings).token_ids[:, 0]
    assert len(ids[0]) > 10 and ids.tolist() == expected[:, : ids.size(1)].tolist()
