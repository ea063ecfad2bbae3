"""The model-based metrics against those that torchmetrics has under the same definition."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPModel, GPT2LMHeadModel

from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import PREFIX, ClipScore
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.perplexity import LanguageModel, Perplexity
from captioning.metrics.retrieval import Retrieval, ranks

CAPTIONS = {7: "the cat", "b": "a dog and the ball", 3: "and the dog", 9: "the dog's cat and a the"}


@pytest.fixture
def images(photos):
    return dict(zip(CAPTIONS, photos))


def scored(evaluator, settings=None, **options):
    references = {image_id: ["a cat"] for image_id in CAPTIONS}
    return evaluator(settings, **options).evaluate(CaptionSet(CAPTIONS, references))


def clip_processor(folder):
    """transformers' own tokeniser and image processor, for the sizes of the made-up CLIP."""
    try:
        from transformers import CLIPImageProcessor as Images
    except ImportError:
        pytest.skip("torchmetrics' CLIPScore asks for a newer transformers")
    from transformers import CLIPProcessor, CLIPTokenizer

    side = {"height": 24, "width": 24}
    return CLIPProcessor(
        image_processor=Images(size={"shortest_edge": 24}, crop_size=side),
        tokenizer=CLIPTokenizer.from_pretrained(str(folder), model_max_length=24),
    )


class Features(CLIPModel):
    """torchmetrics takes what these return for the vectors, which newer versions wrap."""

    def get_image_features(self, *args, **kwargs):
        found = super().get_image_features(*args, **kwargs)
        return getattr(found, "pooler_output", found)

    def get_text_features(self, *args, **kwargs):
        found = super().get_text_features(*args, **kwargs)
        return getattr(found, "pooler_output", found)


def test_clipscore(images, clip_folder, tmp_path):
    clip_score = pytest.importorskip("torchmetrics.functional.multimodal").clip_score
    processor = clip_processor(clip_folder)
    model = Features.from_pretrained(str(clip_folder))
    for path in images.values():  # of the tower's size, since every library resizes in its own way
        Image.open(path).resize((24, 24)).save(path)
    each, expected = [], []
    for turn in range(4):
        files = np.roll(list(images.values()), turn)
        pairs = dict(zip(CAPTIONS, files))
        settings = Settings(images=pairs, cache_dir=tmp_path / "cache")
        result = scored(ClipScore, settings, clip_model=str(clip_folder))
        each += result.per_image["CLIPScore"]
        for path, text in zip(files, CAPTIONS.values()):
            pixels = torch.from_numpy(np.array(Image.open(path))).movedim(2, 0)
            score = clip_score(pixels, PREFIX + text, lambda: (model, processor))
            expected.append(2.5 * score.item())  # the paper's weight, which it leaves out
    assert each == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert sum(value > 1 for value in expected) > 3


def test_perplexity(gpt2_folder):
    perplexity = pytest.importorskip("torchmetrics.functional.text").perplexity
    result = scored(Perplexity, ppl_model=str(gpt2_folder))
    model = GPT2LMHeadModel.from_pretrained(str(gpt2_folder)).eval()
    ids, _ = LanguageModel(str(gpt2_folder)).encode(list(CAPTIONS.values()))
    expected = []
    for text in ids:
        tokens = torch.tensor([text])
        with torch.no_grad():
            logits = model(tokens).logits
        expected.append(perplexity(logits[:, :-1], tokens[:, 1:]).item())
    assert result.per_image["PPL"] == pytest.approx(expected, rel=1e-5)


def test_retrieval(images, clip_folder, tmp_path):
    hit_rate = pytest.importorskip("torchmetrics.functional.retrieval").retrieval_hit_rate
    settings = Settings(images=images, cache_dir=tmp_path / "cache")
    found = scored(Retrieval, settings, clip_model=str(clip_folder))
    clip = Clip(str(clip_folder))
    image = clip.image_features(torch.stack([clip.read_image(path) for path in images.values()]))
    for number, text in enumerate(CAPTIONS.values()):
        (ids,), _ = clip.encode([text])
        similar = (image @ clip.text_features([ids])[0] + 1) / 2
        own = torch.arange(4) == number
        for k in (1, 5):
            hit = hit_rate(similar, own, top_k=k).item()
            assert found.per_image[f"R@{k}"][number] == 100 * hit


def test_ranks_of_many():
    functional = pytest.importorskip("torchmetrics.functional.retrieval")
    random = np.random.default_rng(3)
    vectors = random.normal(size=(2, 200, 8)).astype(np.float32)
    captions, images = vectors / np.linalg.norm(vectors, axis=2, keepdims=True)
    found = ranks(captions, images, range(200))
    similar = torch.from_numpy((captions @ images.T + 1) / 2)
    for number in range(200):
        own = torch.arange(200) == number
        reciprocal = functional.retrieval_reciprocal_rank(similar[number], own).item()
        assert found[number] == round(1 / reciprocal)
