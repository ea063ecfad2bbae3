"""Each classic captioner learns 16 real photos by heart, its greedy captions included."""

import pytest
import torch

from baselines import MODELS, ImageEncoder, Vocabulary, build_classic
from captioning.data import (
    MEAN,
    STD,
    evaluation_transform,
    load_image,
    preprocess_caption,
    read_annotations,
)
from captioning.metrics.bleu import bleu_scores
from decoding import DecodingSettings
from smile import Objective

GREEDY = DecodingSettings(max_length=17, min_length=1, num_beams=1)


class Seen(torch.nn.Module):
    """Annotations of photos that are no longer needed: they come in place of images."""

    dim = 400

    def forward(self, annotations):
        return annotations


@pytest.fixture(scope="module")
def photos(shared_data):
    """Return (annotations of 16 photos, a list of one caption for each).

    The network is made up; its features are brought to the scale of a trained one's.
    """
    samples = read_annotations(shared_data / "annotation" / "flickr8k_karpathy_train.json")[:16]
    transform = evaluation_transform(112)
    images = [transform(load_image(shared_data / "photos" / s.image)) for s in samples]
    encoder = ImageEncoder("regnet_x_400mf", mean=MEAN, std=STD).train()
    with torch.no_grad():
        features = encoder(torch.stack(images))  # (16, 16, 400)
    features = (features - features.mean((0, 1))) / features.std((0, 1))
    return 0.5 * features, [[preprocess_caption(s.captions[0], 15)] for s in samples]


@pytest.mark.parametrize("model", MODELS)
def test_it_knows_them_by_heart(model, photos):
    annotations, captions = photos
    words = Vocabulary.count(text for group in captions for text in group)
    sizes = {"embed_dim": 64, "hidden_dim": 128, "attention_dim": 64, "dropout": 0.0}
    objective = Objective("mle", label_smoothing=0.0)
    captioner = build_classic(model, Seen(), words, objective, **sizes)
    optimiser = torch.optim.AdamW(captioner.parameters(), lr=4e-3)
    for _ in range(80):
        captioner(annotations, captions).loss.backward()
        torch.nn.utils.clip_grad_norm_(captioner.parameters(), 5)
        optimiser.step()
        optimiser.zero_grad()
    captioner.eval()
    found = captioner.generate(annotations, GREEDY)
    as_words = [[words.decode(words.encode(group, 99)[0][0])] for group in captions]
    assert bleu_scores(found, as_words)[3][0].value > 0.9
    # Of another photo it says something else: it has not learnt one caption.
    assert len(set(found)) == 16
