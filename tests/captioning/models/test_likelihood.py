"""The likelihood of human captions, and of single words of generated captions."""

import math

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from baselines.captioner import ClassicCaptioner
from baselines.image_encoder import ImageEncoder
from baselines.vocabulary import Vocabulary
from captioning.config import load_config
from captioning.data.annotations import Sample
from captioning.data.image import evaluation_transform
from captioning.data.sources import read_split
from captioning.models import likelihood
from captioning.models.build import load_trained
from captioning.models.score_tokens import END, scored_captions
from decoding import DecodingSettings
from smile import Objective
from tests.programs import run_program
from tests.tiny import classic_config

CPU = torch.device("cpu")


def test_means_over_all_tokens_and_the_best_temperature(scenes_config, tmp_path):
    captions = [("a dog runs", "a cat"), ("a cat sits",), ("a dog sits", "a zebra")]
    samples = [Sample(f"{n}.png", texts, n) for n, texts in enumerate(captions)]
    config = load_config(scenes_config, [f"image_root={tmp_path}", "batch_size=2"])
    words, keys = Vocabulary(["a", "dog", "cat", "runs", "sits"]), classic_config("sat")
    captioner = ClassicCaptioner(keys, ImageEncoder(keys), words, Objective("smile")).eval()
    logits, labels = [], []
    with torch.no_grad():  # overconfident: the temperature should be about 2
        captioner.decoder.head.weight.mul_(0.1)
        counts = torch.tensor([0.01, 0.01, 5, 1, 5, 2, 2, 1, 2])
        captioner.decoder.head.bias.copy_(2 * counts.log())
        for sample in samples:
            image = Image.effect_noise((32, 32), 90).convert("RGB")
            image.save(tmp_path / sample.image)
            pixels = evaluation_transform(32)(image)[None]
            for caption in sample.captions:  # alone, without padding
                rows, ids = captioner.predictions(pixels, [[caption]])
                logits.append(rows[0].double())
                labels.append(ids[0])
    logits, labels = torch.cat(logits), torch.cat(labels)
    tokens, nll = likelihood.likelihood(captioner, samples, config, CPU)
    assert tokens == len(labels) == 18
    plain = F.cross_entropy(logits, labels).item()
    assert nll[likelihood.UNSCALED] == pytest.approx(plain, rel=1e-5)
    # An independent search for the minimum.
    fine = torch.linspace(0.5, 5, 5000, dtype=torch.float64)
    losses = torch.stack([F.cross_entropy(logits / each, labels) for each in fine])
    temperature, value = likelihood.find_minimum(nll)
    assert temperature == pytest.approx(fine[losses.argmin()].item(), rel=5e-3) and temperature > 1
    assert value == pytest.approx(losses.min().item(), rel=1e-4)
    # The unigram model is trained on: a dog runs END, a cat END; each of 9 tokens once more.
    found = likelihood.unigram_nll(captioner, samples[:1], samples[1:2], config)
    counts = {"a": 2, "cat": 1, "sits": 0, "END": 2}
    assert found == pytest.approx(-sum(math.log((1 + n) / 16) for n in counts.values()) / 4)


def test_the_program_prints_the_likelihoods_of_a_checkpoint(trained, tmp_path):
    best = str(trained(tmp_path / "run") / "checkpoint_best.pth")
    outcome = run_program("captioning.calibrate", "--checkpoint", best, "--device", "cpu")
    assert outcome.code == 0, outcome.err
    config, captioner = load_trained(best, None, CPU)
    samples = read_split(config, "val")
    tokens, nll = likelihood.likelihood(captioner, samples, config, CPU)
    temperature, calibrated = likelihood.find_minimum(nll)
    unigram = likelihood.unigram_nll(captioner, read_split(config, "train"), samples, config)
    first, *rows = outcome.out.splitlines()
    assert first == f"{tokens} tokens of 5 images of val, nats per token"
    assert f"temperature={temperature:.3f}" in rows[-1]
    values = (nll[likelihood.UNSCALED], unigram, calibrated)
    assert [row.split()[-1] for row in rows] == [f"{value:.3f}" for value in values]


SEARCHES = {
    "beam": DecodingSettings(max_length=9, min_length=6, num_beams=2),
    "sampled": DecodingSettings(max_length=9, min_length=4, sample=True, temperature=0.5, top_k=3),
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("model", ["blip", "lstm", "attn", "sat"])
def test_probabilities_of_words_make_up_the_score(make_captioner, model, search):
    """The score is of the step function, and has neither temperature nor top-k."""
    if model == "blip":
        captioner = make_captioner(prompt="a picture ", image_size=64)
        with torch.no_grad():  # only whole words are generated
            kept = [captioner.tokenizer.end, *captioner.tokenizer.ids("dog cat red on")]
            bias = captioner.text_decoder.cls["predictions"].bias
            bias += torch.full_like(bias, -100).index_fill(0, torch.tensor(kept), 0)
    else:
        words, keys = Vocabulary(["a", "dog", "runs"]), classic_config(model, encoder_size=2)
        captioner = ClassicCaptioner(keys, ImageEncoder(keys), words, Objective("smile")).eval()
    image, settings = torch.randn(1, 3, 64, 64), SEARCHES[search]
    torch.manual_seed(1)
    (scored,) = scored_captions(captioner, image, settings)
    torch.manual_seed(1)
    ids = captioner.generate_details(image, settings).token_ids[0, 0].tolist()
    length = [*ids, captioner.tokenizer.end].index(captioner.tokenizer.end)
    total = scored.probabilities.log().sum().item()
    assert total == pytest.approx(scored.score * length, rel=1e-4)
    assert " ".join(word for word in scored.words if word != END) == scored.caption
    maps = {"blip": (4, 4), "lstm": None}.get(model, (2, 2))
    assert getattr(scored.attention_map, "shape", None) == (maps and (len(scored.words), *maps))


def test_a_word_of_two_pieces_has_their_product_and_the_mean_of_their_gaze(make_captioner):
    captioner = make_captioner()
    with torch.no_grad():  # only "##s" is generated
        bias = captioner.text_decoder.cls["predictions"].bias
        bias[captioner.tokenizer.bert.token_to_id("##s")] += 8
    settings = DecodingSettings(max_length=8, min_length=0, num_beams=1)
    (scored,) = scored_captions(captioner, torch.randn(1, 3, 48, 48), settings)
    assert scored.words == ["s" * (8 - len(captioner.prompt_ids))]
    total = 8 * scored.score  # greedy: the sum of all log-probabilities over the length
    assert scored.probabilities.log().sum().item() == pytest.approx(total, rel=1e-4)
    torch.testing.assert_close(scored.attention_map.sum((1, 2)), torch.ones(1))
