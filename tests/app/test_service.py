"""Captions with a visitor's settings and prompt, and their records."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from app.options import OFF_BY_DEFAULT, page_defaults, read_options
from app.photos import Limits
from app.service import CaptionService, caption_all
from captioning.data import evaluation_transform
from captioning.models.reranking import Reranker
from captioning.runtime.errors import UserError
from decoding import DecodingSettings
from decoding.rerank import Reranking
from tests.app.captions import caption_of

PHOTO = Image.radial_gradient("L").convert("RGB")


def image_for(checkpoint):
    return evaluation_transform(checkpoint.config.image_size)(PHOTO).unsqueeze(0)


@pytest.fixture
def record_of(service):
    """Return a function from settings to the record of the first checkpoint's caption."""

    def record(**given):
        checkpoint = service.checkpoints[0]
        options = read_options({**page_defaults(checkpoint), **given})
        return caption_of(service, PHOTO, checkpoint, options).record()

    return record


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"num_beams": 1, "repetition_penalty": 1.5},
        {"guidance_scale": 3.0},
        {"sample": True, "temperature": 3.0, "min_p": 0.5},
        {"sample": True, "temperature": 3.0, "typical_p": 0.1},
    ],
)
def test_a_caption_is_the_captioners_own(service, record_of, given):
    """Settings that are off are not recorded."""
    checkpoint = service.checkpoints[0]
    settings = replace(checkpoint.config.decoding_settings(), **given)
    torch.manual_seed(6)
    expected = checkpoint.captioner.generate_details(image_for(checkpoint), settings)
    record = record_of(**given, seed=6)
    assert record["caption"] == expected.captions[0][0]
    assert record["score"] == pytest.approx(expected.scores.item(), abs=1e-6)
    assert " ".join(entry["word"] for entry in record["words"]) == record["caption"]
    assert {"prompt": "a picture of ", **given}.items() <= record["settings"].items()
    assert OFF_BY_DEFAULT & record["settings"].keys() == OFF_BY_DEFAULT & given.keys()
    assert ("num_beams" in record["settings"]) != ("seed" in record["settings"])
    assert ("own_score" in record) == ("guidance_scale" in given)
    if "own_score" in record:
        assert record["own_score"] == pytest.approx(expected.own_scores.item(), abs=1e-6)


def test_a_reranked_caption_and_its_candidates(service, record_of):
    checkpoint = service.checkpoints[0]
    given = {"rerank": "mmi", "num_candidates": 5, "seed": 3}
    record = record_of(**given)
    assert "candidates" not in record and given.items() <= record["settings"].items()
    candidates = record_of(**given, details=True)["candidates"]
    scores = [candidate["rerank_score"] for candidate in candidates]
    assert len(scores) == 5 and scores == sorted(scores, reverse=True)
    reranker = Reranker(checkpoint.captioner, Reranking("mmi", 5, seed=3), checkpoint.device)
    settings = checkpoint.config.decoding_settings()
    expected = reranker.generate_details(image_for(checkpoint), settings)
    assert expected.captions == [[record["caption"]]] == [[candidates[0]["caption"]]]
    assert record_of(**given, rerank_weight=0)["caption"] == record_of()["caption"]
    by_risk = record_of(**{**given, "rerank": "mbr"})["settings"]
    assert by_risk["rerank"] == "mbr" and "rerank_weight" not in by_risk


def test_a_prompt_holds_for_one_caption(service, monkeypatch):
    checkpoint = service.checkpoints[1]
    captioner = checkpoint.captioner
    before = captioner.prompt, captioner.prompt_ids
    options = read_options({**page_defaults(checkpoint), "prompt": " A  Large star"})
    prompted = caption_of(service, PHOTO, checkpoint, options)
    assert (captioner.prompt, captioner.prompt_ids) == before
    monkeypatch.setattr(captioner, "prompt", "a large star ")
    monkeypatch.setattr(captioner, "prompt_ids", captioner.tokenizer.encode_prompt("a large star"))
    settings = DecodingSettings(max_length=16, min_length=8, num_beams=2)
    assert prompted.details.caption == captioner.generate(image_for(checkpoint), settings)[0]
    assert prompted.settings["prompt"] == "a large star "


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt": "a zebra"}, "MLE: prompt 'a zebra' has a word that the vocabulary lacks"),
        ({"max_length": 4}, "MLE: prompt of 4 tokens, which leaves no room .* max_length is 4"),
        ({"max_length": 21}, "MLE: max_length is 21; it has room for 20 tokens"),
        ({"min_length": 41}, "min_length is 41, above max_length, 40"),
        ({"num_beams": 11}, "num_beams: found 11; input should be less than or equal to 10"),
        ({"num_beams": "many"}, "num_beams: found 'many'; input should be a valid integer"),
        ({"beams": 3}, "unknown key 'beams'; did you mean 'num_beams'?"),
    ],
)
def test_invalid_settings_are_one_line(service, monkeypatch, given, message):
    captioner = service.checkpoints[0].captioner
    monkeypatch.setattr(captioner, "max_positions", 20)
    with pytest.raises(UserError, match=message) as caught:
        caption_of(service, PHOTO, service.checkpoints[0], read_options(given))
    assert "\n" not in str(caught.value)
    assert captioner.prompt == "a picture of "


def test_too_many_photos_are_refused_before_any_is_read(service, files):
    small = CaptionService(service.checkpoints, Limits(photos=2))
    photos = [(files / "no such", "a.jpg")] * 3
    with pytest.raises(UserError, match="3 photos; this page takes up to 2 at a time"):
        next(caption_all(small, photos, ["MLE"], read_options({})))


def test_unknown_checkpoints_are_refused(service, files):
    def labels_of(*labels):
        found = service.caption_file(files / "photo.jpg", "a", labels, read_options({}))[1]
        return [caption.checkpoint.label for caption in found]

    assert labels_of("SMILE", "MLE") == ["MLE", "SMILE"]
    for labels, line in ((["GPT"], "there is no 'GPT'; there are MLE, SMILE"), ([], "no checkpoi")):
        with pytest.raises(UserError, match=line):
            labels_of(*labels)
