"""The training benchmark in its smallest form: equal losses, shared parameters, what is written."""

import json

import pytest
import torch
import transformers

from benchmarks.training import BATCH, OURS, THEIRS, Training, captions, images, main

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"),
    reason=f"transformers {transformers.__version__} has no BLIP",
)


def test_both_train_the_same_parameters_by_the_same_loss():
    training = Training(tiny=True, peer=True)
    training.ours.eval()
    training.theirs.eval()
    image, texts = images(training.ours, BATCH), captions(True, BATCH, 1)
    for _ in range(2):
        losses = [training.loss(contender, image, texts) for contender in (OURS, THEIRS)]
        torch.testing.assert_close(*losses)
        training.step(THEIRS, "mle", autocast=False)()
        training.step(OURS, "mle", autocast=False)()
    weight = training.ours.text_decoder.bert["embeddings"].word_embeddings.weight
    assert any(weight is parameter for parameter in training.theirs.parameters())
    assert all(state["step"] == 4 for state in training.fused.state.values())


def test_captions_have_the_lengths_that_are_said():
    training = Training(tiny=True, peer=False)
    ours, texts = training.ours, captions(True, 4, 2)
    flat = [ours.prompt + text for group in texts for text in group]
    _, mask = ours.tokenizer.encode(flat, ours.max_tokens)
    assert mask.sum(1).tolist() == [20, 27, 33, 40, 20, 27, 33, 40]


@pytest.mark.slow
def test_quick_rows(forked, tmp_path):
    main(["--quick", "--output", str(tmp_path)])
    rows = json.loads((tmp_path / "training.json").read_text())["rows"]
    names = [entry["name"] for entry in rows]
    assert names == ["step, bf16 autocast", "captions of an image, bf16"]
    for entry in rows:
        for values in entry["contenders"].values():
            assert len(values["times"]) == 1 and values["peak_bytes"] > 0 and values["rate"] > 0
