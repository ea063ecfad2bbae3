"""The recorded numbers of the original implementation, through the public loader."""

import json

import numpy as np
import pytest
import torch

from BLIP import build_captioner, load_weights, read_checkpoint
from BLIP.checkpoint import resize_position_embedding
from decoding import DecodingSettings
from smile import Objective


@pytest.fixture(scope="module")
def recorded(shared_data):
    golden = shared_data.parent / "golden" / "tiny"
    arrays = {k: torch.from_numpy(v) for k, v in np.load(golden / "arrays.npz").items()}
    return arrays, json.loads((golden / "expected.json").read_text())


@pytest.fixture(scope="module")
def captioner(shared_data, recorded):
    golden, sizes = shared_data.parent / "golden" / "tiny", dict(recorded[1]["vit"])
    captioner = build_captioner(
        tokenizer=str(golden / "vocab.txt"),
        image_size=sizes.pop("image_size"),
        vit=sizes,
        med_config=golden / "med_config.json",
        objective=Objective("smile", first_token_mle=True),
        prompt=recorded[1]["prompt"],
    )
    state = read_checkpoint(str(golden / "checkpoint.pth"))["model"]
    report = load_weights(captioner, state, "checkpoint.pth")
    assert str(report) == "every key matched"
    return captioner.eval()


@torch.no_grad()
def test_embeddings_token_ids_and_logits_are_the_originals(captioner, recorded):
    arrays, expected = recorded
    image_embeds = captioner.visual_encoder(arrays["image"])
    torch.testing.assert_close(image_embeds, arrays["image_embeds"], atol=2e-6, rtol=0)
    resized = resize_position_embedding(captioner.visual_encoder.pos_embed, 37)
    torch.testing.assert_close(resized, arrays["pos_embed_96"])
    tokens = captioner.tokenizer.encode(expected["captions"], max_length=40)
    assert tokens.tolist() == arrays["input_ids"].tolist()
    mask = tokens != captioner.tokenizer.pad
    assert mask.long().tolist() == arrays["attention_mask"].tolist()
    logits = captioner.text_decoder.logits(tokens, image_embeds, start=3)[:, :-1]
    is_token = mask[:, 3:-1]
    expected = arrays["logits"][is_token]
    torch.testing.assert_close(logits[is_token], expected, atol=3e-5, rtol=1e-5)


def test_the_loss_of_images_and_texts_and_every_gradient_are_the_originals(captioner, recorded):
    arrays, expected = recorded
    captions = [[text[len(captioner.prompt) :]] for text in expected["captions"]]
    loss = captioner(arrays["image"], captions).loss
    assert loss.item() == pytest.approx(expected["losses"]["smile_first_token_mle"], abs=1e-5)
    loss.backward()
    norms = {name: p.grad.norm().item() for name, p in captioner.named_parameters()}
    # Keys' biases have no gradient but rounding: softmax does not see a shift.
    assert norms == pytest.approx(expected["smile_first_token_mle_grad_norms"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("together", [True, False])
def test_generated_token_ids_and_captions_are_the_originals(captioner, recorded, together):
    image, runs = recorded[0]["image"], recorded[1]["generate"]
    assert len(runs) == 5
    for run in runs.values():
        settings = DecodingSettings(**run["settings"])
        batches = [image] if together else image.split(1)
        outputs = [captioner.generate_details(batch, settings) for batch in batches]
        captions = [captions[0] for output in outputs for captions in output.captions]
        # The original cuts a letter off a caption that begins with a piece, "##ing".
        as_original = [text[text.startswith("ing") :] for text in captions]
        assert as_original == run["captions"]
        rows = [row for output in outputs for row in output.token_ids[:, 0].tolist()]
        for row, expected in zip(rows, run["token_ids"]):
            length = min(len(row), len(expected))
            assert row[:length] == expected[:length]
            assert not any(row[length:] + expected[length:])
