"""Captioners, but for a VLM, tell how likely the captions were that they drew."""

import pytest
import torch

from BLIP.kernels.int8_linear import has_int8
from captioning.config import load_config
from captioning.models.build import captioner_from
from decoding import DecodingSettings

SMALL = ["encoder=shufflenet_v2_x0_5", "encoder_weights=none", "encoder_lr=1e-3"]
SMALL += ["embed_dim=16", "hidden_dim=16", "attention_dim=8", "prompt='a '"]
MODELS = {
    "blip": ["vit.embed_dim=32"],
    **{name: [f"model={name}", *SMALL] for name in ("rnn", "lstm", "attn", "sat")},
}
WHOLE = {"top_p": 1.0, "top_k": 0, "min_length": 0, "max_length": 14}


@pytest.fixture(params=MODELS)
def captioner(request, scenes_config, tmp_path):
    flags = {"output_dir": str(tmp_path)}
    config = load_config(scenes_config, [*MODELS[request.param], "image_size=64"], flags)
    return captioner_from(config, None)[0].eval()


@pytest.fixture(params=[None, torch.float32, torch.int8])
def copied(request, captioner):
    """The captioner, or its copy for inference, whose head has another layout."""
    if request.param == torch.int8 and not has_int8(torch.device("cpu")):
        pytest.skip("torch has no kernels for 8 bits")
    return captioner if request.param is None else captioner.for_inference(request.param, False)


def test_captions_were_drawn_with_these_likelihoods(copied):
    captioner, image = copied, torch.randn(2, 3, 64, 64)
    settings = DecodingSettings(sample=True, num_return=4, length_penalty=0.0, **WHOLE)
    encoded = captioner.encode(image)
    drawn = captioner.generate_from(encoded, settings)
    ids = drawn.token_ids.clone()
    found = captioner.log_likelihoods(encoded, ids)
    assert found.shape == (2, 4, ids.size(2) - len(captioner.prompt_ids))
    # What the decoding summed up while it drew.
    torch.testing.assert_close(found.sum(-1).double(), drawn.scores, rtol=1e-4, atol=1e-4)
    assert len({round(score, 3) for score in drawn.scores.flatten().tolist()}) > 4


def test_at_a_temperature_they_are_those_of_the_words_read_again(copied):
    """From `reread`, caption by caption, up to its end."""
    captioner = copied
    start, end = len(captioner.prompt_ids), captioner.tokenizer.end
    image = torch.randn(2, 3, 64, 64)
    encoded = captioner.encode(image)
    settings = DecodingSettings(sample=True, num_return=3, temperature=1.7, **WHOLE)
    torch.manual_seed(1)
    ids = captioner.generate_from(encoded, settings).token_ids.clone()
    ids[0, 1, start + 2] = end  # one that has ended, whatever stands behind it
    found = captioner.log_likelihoods(encoded, ids, 1.7)
    for i in range(2):
        for j in range(3):
            said = ids[i, j, start:].tolist()
            length = said.index(end) + 1 if end in said else len(said)
            logits, _ = captioner.score_tokens(captioner.encode(image[i : i + 1]), ids[i, j])
            expected = (logits / 1.7).log_softmax(-1)[torch.arange(len(said)), ids[i, j, start:]]
            torch.testing.assert_close(
                found[i, j, :length], expected[:length], rtol=1e-4, atol=1e-4
            )
            assert (found[i, j, length:] == 0).all()


def test_they_have_a_gradient_for_all_that_learns(captioner):
    encoded = captioner.encode(torch.randn(1, 3, 64, 64))
    ids = captioner.generate_from(
        encoded, DecodingSettings(sample=True, num_return=2, **WHOLE)
    ).token_ids.clone()
    captioner.log_likelihoods(encoded, ids).sum().backward()
    without = [n for n, p in captioner.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
