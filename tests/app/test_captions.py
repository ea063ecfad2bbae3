"""Captions of visitors' photos with their settings, and what is shown and stored of them."""

import base64
import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from app import view
from app.captions import Answer, read_photo
from app.options import default_settings
from captioning.data.image import evaluation_transform, load_image
from captioning.models.score_tokens import ScoredCaption
from captioning.runtime.errors import UserError


@pytest.fixture
def ask(service, files):
    """Return a function from settings to the answer about photo.jpg by the first checkpoint."""

    def answer(name="photo.jpg", **settings):
        own = {**default_settings(service.checkpoints[0].config), "checkpoints": ["MLE"]}
        return service.answer([(str(files / name), {**own, **settings})])[0]

    return answer


GREEDY = {"num_beams": 1, "repetition_penalty": 1.5, "length_penalty": 2.0}
SAMPLE = {"sample": True, "temperature": 3.0, "top_p": 0.5, "top_k": 9}


@pytest.mark.parametrize("given", [{}, GREEDY, SAMPLE, {"prompt": "a large star "}], ids=str)
def test_a_caption_is_the_captioners_own(service, files, ask, monkeypatch, given):
    """The photo has to be turned, as in all programs. A prompt holds for one caption."""
    (record,) = ask(**given, seed=6).record()
    checkpoint, changes = service.checkpoints[0], dict(given)
    captioner, prompt = checkpoint.captioner, changes.pop("prompt", "a picture of ")
    assert captioner.prompt == "a picture of "
    monkeypatch.setattr(captioner, "prompt", prompt)
    monkeypatch.setattr(captioner, "prompt_ids", captioner.tokenizer.encode_prompt(prompt))
    settings = replace(checkpoint.config.decoding_settings(), **changes)
    transform = evaluation_transform(checkpoint.config.image_size)
    torch.manual_seed(6)
    image = transform(load_image(files / "photo.jpg")).unsqueeze(0)
    expected = captioner.generate_details(image, settings)
    assert (record["image"], record["label"]) == ("photo.jpg", "MLE")
    assert record["caption"] == expected.captions[0][0]
    assert record["score"] == pytest.approx(expected.scores.item(), abs=1e-6)
    assert " ".join(word["word"] for word in record["words"]) == record["caption"]
    assert all(0 < word["probability"] <= 1 for word in record["words"])
    assert {**given, "prompt": prompt, "seed": 6}.items() <= record["settings"].items()
    assert record["cut"] == (len(record["words"]) == 16 - len(captioner.prompt_ids))


def test_an_error_is_one_line_of_its_own_call(service, files, ask, monkeypatch):
    """Photos are named by their file, and the next call is answered."""
    monkeypatch.setattr(service.checkpoints[0].captioner, "max_positions", 20)
    monkeypatch.setattr(service, "max_pixels", 1_000_000)
    for line, given in {
        "MLE: prompt 'a zebra' has a word that the vocabulary lacks": {"prompt": "a zebra"},
        "MLE: max_length is 21; it has room for 20 tokens": {"max_length": 21},
        "temperature: found nan": {"temperature": float("nan")},
        "unknown key 'beams'; did you mean 'num_beams'?": {"beams": 3},
        "choose one or more of MLE, SMILE, MLE+SMILE": {"checkpoints": ["GPT"]},
        "notes.jpg: not a readable image (none of": {"name": "notes.jpg"},
        "huge.png: 6000 x 4000 pixels; this page takes up to 1 million": {"name": "huge.png"},
    }.items():
        found = ask(**given).record()["error"]
        assert line in found and "\n" not in found and str(files) not in found
    assert "caption" in ask().record()[0]


def test_calls_share_a_batch_and_a_bad_one_fails_alone(service, files, monkeypatch):
    """Samples are computed alone, so that a seed gives the same caption again.

    One photo is decoded at a time.
    """
    captioner, sizes = service.checkpoints[0].captioner, []
    encode = captioner.encode

    def read(*arguments):
        assert service._lock.locked()
        return read_photo(*arguments)

    monkeypatch.setattr("app.captions.read_photo", read)
    monkeypatch.setattr(captioner, "encode", lambda x: sizes.append(len(x)) or encode(x))
    good, other, cut = (str(files / name) for name in ("photo.jpg", "other.png", "cut.jpg"))
    beams = {"num_beams": 2, "max_length": 16, "checkpoints": ["SMILE", "MLE"]}
    sample = {"sample": True, "max_length": 16, "temperature": 3, "seed": 4, "prompt": ""}
    calls = [(good, beams), (cut, beams), (good, sample), (other, beams), (None, beams)]
    calls += [(other, sample), (good, {"prompt": "a zebra"})]
    together = [answer.record() for answer in service.answer(calls)]
    assert sizes == [2, 1, 1]
    assert [r["label"] for r in together[0]] == ["MLE", "SMILE"] and len(together[2]) == 3
    for found, call in zip(together, calls):
        alone = service.answer([call])[0].record()
        if isinstance(alone, list):  # a batch may change the last digits
            for record, expected in zip(found, alone):
                expected["score"] = pytest.approx(expected["score"], abs=1e-4)
                expected["words"] = record["words"]
        assert found == alone


def test_an_attention_map_is_bright_at_its_maximum_and_transparent_at_zero():
    side, weights = view.MAP_SIDE, torch.zeros(1, 4, 4)
    weights[0, 2, 1] = 1
    (source,) = view.attention_pictures(ScoredCaption("", 0, [], torch.zeros(1), weights))
    data = base64.b64decode(source.split("base64,")[1])
    picture = np.asarray(Image.open(io.BytesIO(data)))  # (side, side, RGBA)
    row, column = np.unravel_index(picture[..., 3].argmax(), (side, side))
    assert (row * 4 // side, column * 4 // side) == (2, 1)
    assert picture[row, column, :3].mean() > 200
    assert picture[side - 1 - row, side - 1 - column, 3] == 0


def test_a_card_marks_cut_captions_and_missing_maps_and_names_and_reasons_are_text(ask):
    answer, name = ask(), '"><script>alert(1)</script>.jpg'
    (caption,) = answer.captions
    answer.name = name
    for template, mark in (("results.html", "; cut at the longest"), ("batch.html", "(cut)")):
        for is_cut in (True, False):
            caption.record["cut"] = is_cut
            html = view.render(template, answer=answer, answers=[answer])
            assert (mark in html) == is_cut
        failed = Answer("", error=UserError(name))
        html += view.render(template, answer=failed, answers=[failed])
        assert html.count("alert") >= 2 and "<script" not in html
    answer.captions = [caption._replace(details=caption.details._replace(attention_map=None))]
    html = view.render("results.html", answer=answer)
    assert "it has no attention map" in html and "data-attention" not in html


def test_a_zip_has_the_captions_of_good_photos_and_the_reasons_of_bad_ones(
    service, files, tmp_path
):
    settings = {"max_length": 12, "min_length": 8, "checkpoints": ["SMILE", "MLE+SMILE 0.5:0.5"]}
    names = ["photo.jpg", "cut.jpg", "photo.jpg", "other.png"]
    answers = service.answer([(str(files / name), settings) for name in names])
    view.write_zip(answers, tmp_path / "captions.zip")
    with zipfile.ZipFile(tmp_path / "captions.zip") as archive:
        content = {name: archive.read(name).decode() for name in archive.namelist()}
    records = [json.loads(line) for line in content.pop("captions.jsonl").splitlines()]
    failed = json.loads(content.pop("failed.jsonl"))
    assert failed["image"] == "cut.jpg" and "truncated" in failed["reason"]
    assert records == [record for i in (0, 2, 3) for record in answers[i].record()]
    stems = ["photo (1)", "photo (3)", "other"]
    paths = [f"{folder}/{s}.txt" for s in stems for folder in ("SMILE", "MLE+SMILE 0.5_0.5")]
    assert content == {path: r["caption"] + "\n" for path, r in zip(paths, records)}
