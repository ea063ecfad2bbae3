"""Captions with a visitor's settings and prompt, and their records."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from app.options import defaults_of, read_options
from captioning.data import evaluation_transform
from captioning.models.reranking import Reranker
from captioning.runtime.errors import UserError
from decoding import DecodingSettings
from decoding.rerank import Reranking
from tests.app.captions import caption_of

PHOTO = Image.radial_gradient("L").convert("RGB")


def image_for(checkpoint):
    return evaluation_transform(checkpoint.config.image_size)(PHOTO).unsqueeze(0)


def test_a_caption_is_the_captioners_own(service):
    for checkpoint in service.checkpoints:
        options = read_options(defaults_of(checkpoint))
        expected = checkpoint.captioner.generate_details(
            image_for(checkpoint), checkpoint.config.decoding_settings()
        )
        record = caption_of(service, PHOTO, checkpoint, options).record()
        assert record["caption"] == expected.captions[0][0]
        assert record["score"] == pytest.approx(expected.scores.item(), abs=1e-6)
        assert " ".join(entry["word"] for entry in record["words"]) == record["caption"]
        assert record["settings"]["num_beams"] == 2
        assert record["settings"]["prompt"] == "a picture of "


def test_no_repeated_ngram_and_settings_that_are_off_are_not_recorded(service):
    checkpoint = service.checkpoints[0]
    given = {**defaults_of(checkpoint), "max_length": 40, "min_length": 38}
    plain = caption_of(service, PHOTO, checkpoint, read_options(given))
    once = caption_of(
        service, PHOTO, checkpoint, read_options({**given, "no_repeat_ngram_size": 1})
    )
    words = [entry["word"] for entry in plain.record()["words"]]
    other = [entry["word"] for entry in once.record()["words"]]
    assert len(set(words)) < len(words) and len(set(other)) == len(other)
    assert once.settings["no_repeat_ngram_size"] == 1
    assert not {"no_repeat_ngram_size", "min_p", "typical_p"} & set(plain.settings)


def test_a_guided_caption_has_the_captioners_own_score_too(service):
    checkpoint = service.checkpoints[0]
    given = defaults_of(checkpoint)
    plain = caption_of(service, PHOTO, checkpoint, read_options(given)).record()
    assert "own_score" not in plain and "guidance_scale" not in plain["settings"]
    guided = {**given, "guidance_scale": 3.0}
    record = caption_of(service, PHOTO, checkpoint, read_options(guided)).record()
    settings = replace(checkpoint.config.decoding_settings(), guidance_scale=3.0)
    expected = checkpoint.captioner.generate_details(image_for(checkpoint), settings)
    assert record["caption"] == expected.captions[0][0]
    assert record["score"] == pytest.approx(expected.scores.item(), abs=1e-6)
    assert record["own_score"] == pytest.approx(expected.own_scores.item(), abs=1e-6)
    assert record["settings"]["guidance_scale"] == 3


def test_a_reranked_caption_and_its_candidates(service):
    checkpoint = service.checkpoints[0]
    given = {**defaults_of(checkpoint), "rerank": "mmi", "num_candidates": 5, "seed": 3}
    record = caption_of(service, PHOTO, checkpoint, read_options(given)).record()
    assert "candidates" not in record
    assert record["settings"]["num_candidates"] == 5 and record["settings"]["rerank"] == "mmi"
    listed = caption_of(service, PHOTO, checkpoint, read_options({**given, "details": True}))
    candidates = listed.record()["candidates"]
    scores = [candidate["rerank_score"] for candidate in candidates]
    assert len(scores) == 5 and scores == sorted(scores, reverse=True)
    assert candidates[0]["caption"] == record["caption"]
    reranker = Reranker(
        checkpoint.captioner, Reranking("mmi", 5, seed=3), torch.device(checkpoint.device)
    )
    settings = checkpoint.config.decoding_settings()
    expected = reranker.generate_details(image_for(checkpoint), settings)
    assert expected.captions == [[record["caption"]]]
    off = caption_of(service, PHOTO, checkpoint, read_options({**given, "rerank_weight": 0}))
    plain = caption_of(service, PHOTO, checkpoint, read_options(defaults_of(checkpoint)))
    assert off.record()["caption"] == plain.record()["caption"]


@pytest.mark.parametrize(("name", "value"), [("min_p", 1.0), ("typical_p", 1e-6)])
def test_min_p_and_typical_p_restrict_samples(service, name, value):
    given = {"sample": True, "max_length": 8, "top_k": 0, "top_p": 1, "temperature": 3}

    def said(**more):
        options = [read_options({**given, **more, "seed": seed}) for seed in range(5)]
        return {
            caption_of(service, PHOTO, service.checkpoints[0], o).details.caption for o in options
        }

    assert len(said()) == 5 > len(said(**{name: value}))
    with pytest.raises(UserError, match=name):
        read_options({name: 1.5})


def test_a_prompt_holds_for_one_caption(service):
    checkpoint = service.checkpoints[1]
    captioner = checkpoint.captioner
    before = captioner.prompt
    given = defaults_of(checkpoint)
    prompted = caption_of(
        service, PHOTO, checkpoint, read_options({**given, "prompt": " A  Large star"})
    )
    ids = captioner.tokenizer.encode_prompt("a large star")
    plain = captioner.prompt_ids
    captioner.prompt, captioner.prompt_ids = "a large star ", ids
    try:
        settings = DecodingSettings(max_length=16, min_length=8, num_beams=2)
        expected = captioner.generate(image_for(checkpoint), settings)[0]
    finally:
        captioner.prompt, captioner.prompt_ids = before, plain
    assert prompted.details.caption == expected
    assert prompted.settings["prompt"] == "a large star "
    assert captioner.prompt == before and torch.equal(captioner.prompt_ids, plain)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt": "a zebra"}, "prompt: MLE has not learned a word of 'a zebra'"),
        ({"max_length": 4}, "max_length is 4; with MLE's prompt, of 4 tokens, it must be 5 or"),
        ({"min_length": 41}, "min_length is 41, above max_length, 40"),
        ({"num_beams": 11}, "num_beams is 11: input should be less than or equal to 10"),
        ({"num_beams": "many"}, "num_beams is 'many': input should be a valid integer"),
        ({"beams": 3}, "beams: no such setting; there are sample, num_beams"),
    ],
)
def test_invalid_settings_are_one_line(service, given, message):
    with pytest.raises(UserError, match=message) as caught:
        caption_of(service, PHOTO, service.checkpoints[0], read_options({"min_length": 1, **given}))
    assert "\n" not in str(caught.value)
    assert service.checkpoints[0].captioner.prompt == "a picture of "


def test_more_tokens_than_positions_are_refused(service, monkeypatch):
    monkeypatch.setattr(service.checkpoints[0].captioner, "max_positions", 20)
    with pytest.raises(UserError, match="max_length is 21; MLE has room for 20 tokens"):
        caption_of(service, PHOTO, service.checkpoints[0], read_options({"max_length": 21}))


def test_unknown_checkpoints_are_refused(service, files):
    def labels_of(*labels):
        found = service.caption_file(files / "photo.jpg", "a", labels, read_options({}))[1]
        return [caption.checkpoint.label for caption in found]

    assert labels_of("SMILE", "MLE") == ["MLE", "SMILE"]
    with pytest.raises(UserError, match="there is no 'GPT'; there are MLE, SMILE"):
        labels_of("GPT")
    with pytest.raises(UserError, match="no checkpoint is chosen"):
        labels_of()
