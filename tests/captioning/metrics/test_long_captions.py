"""Captions that CLIP cuts: SigLIP 2 against transformers, and scores by sentence."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from captioning.metrics.clip import Siglip, load_clip
from captioning.metrics.clipscore import ClipScore
from captioning.metrics.evaluator import CaptionSet, Settings
from tests.captioning.conftest import make_up

WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "a", "cat", "dog", "the", "and"]
LONG = "the cat and the dog " * 40


@pytest.fixture(scope="module")
def siglip_folder(tmp_path_factory):
    """Return the folder of a SigLIP 2 of 12 tokens and images of 24 by 24."""
    if not hasattr(transformers, "SiglipModel"):
        pytest.skip(f"transformers {transformers.__version__} has no SigLIP")
    folder = tmp_path_factory.mktemp("siglip")
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    tower["num_attention_heads"] = 4
    config = transformers.SiglipConfig(
        text_config={**tower, "vocab_size": len(WORDS), "max_position_embeddings": 12},
        vision_config={**tower, "image_size": 24, "patch_size": 8},
    )
    model = transformers.SiglipModel(config)
    make_up(model, 0.25)
    model.save_pretrained(str(folder))
    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.post_processor = ends
    tokenizer.save(str(folder / "tokenizer.json"))
    processor = transformers.SiglipImageProcessorPil if hasattr(
        transformers, "SiglipImageProcessorPil") else transformers.SiglipImageProcessor  # fmt: skip
    processor(size={"height": 24, "width": 24}, resample=2).save_pretrained(str(folder))
    return folder


def unit(features):
    features = getattr(features, "pooler_output", features)
    return torch.nn.functional.normalize(features, dim=-1).detach().numpy()


def test_siglip_is_that_of_transformers(siglip_folder, photos):
    clip = load_clip(str(siglip_folder))
    assert isinstance(clip, Siglip) and clip.width == 32
    reference = transformers.SiglipModel.from_pretrained(str(siglip_folder)).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(siglip_folder / "tokenizer.json"), pad_token="<pad>"
    )
    texts = ["The cat", "", "a dog and a bird", LONG]
    padded = {"padding": "max_length", "max_length": 12, "truncation": True}
    expected = tokenizer([text.lower() for text in texts], return_tensors="pt", **padded)
    ids, long = clip.encode(texts)
    assert long == [False, False, False, True]
    features = unit(reference.get_text_features(input_ids=expected["input_ids"]))
    assert clip.text_features(ids).numpy() == pytest.approx(features, abs=1e-6)
    processor = transformers.AutoImageProcessor.from_pretrained(str(siglip_folder), use_fast=False)
    images = [Image.open(path).convert("RGB") for path in photos]
    pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    own = torch.stack([clip.read_image(path) for path in photos])
    assert own.numpy() == pytest.approx(pixels.numpy(), abs=1e-5)
    features = unit(reference.get_image_features(pixel_values=pixels))
    assert clip.image_features(own).numpy() == pytest.approx(features, abs=1e-5)


def test_a_caption_scores_as_the_mean_of_its_sentences(clip_folder, photos, tmp_path):
    sentences = [["the cat."], ["a dog!", "the cat and the dog?", "and"], [""]]
    captions = {i: " ".join(parts) for i, parts in enumerate(sentences)}

    def score(predictions, images):
        settings = Settings(dict(zip(predictions, images)), cache_dir=tmp_path)
        references = {i: ["a", "a dog"] for i in predictions}
        evaluator = ClipScore(settings, clip_model=str(clip_folder))
        return evaluator.evaluate(CaptionSet(predictions, references)).per_image

    whole = score(captions, photos)
    alone = [
        np.mean([score({0: text}, [photo])["CLIPScore"][0] for text in parts])
        for parts, photo in zip(sentences, photos)
    ]
    assert whole["CLIPScore_sentences"] == pytest.approx(alone, abs=1e-4)
    assert whole["CLIPScore"][1] != pytest.approx(alone[1], abs=1e-3)
