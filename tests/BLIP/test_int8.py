"""int8 inference: layers against their formulas, which layer gets which, what is refused."""

import pytest
import torch
from torch import nn

from BLIP.inference import InferenceLinear
from BLIP.int8 import HalfLinear, Int8Linear, check_int8, has_int8
from captioning import caption
from decoding import DecodingSettings
from tests.programs import refused

pytestmark = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="torch has no kernels for 8 bits here"
)
BEAM = DecodingSettings(num_beams=3, max_length=16, min_length=5)


@pytest.mark.parametrize("vnni", [True, False])
@torch.no_grad()
def test_layers_are_their_formulas_whatever_the_batch(vnni, monkeypatch):
    """Without VNNI, sums of two products would saturate, so x has 7 bits."""
    if vnni and not torch.cpu._is_vnni_supported():
        pytest.skip("this processor has no VNNI")
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
    linear, x = nn.Linear(256, 48), torch.rand(2, 40, 256) - 0.2
    x[0, ::3] *= 30  # some patches have larger values
    x[1, 8, 5], x[1, 9, 5] = -50.0, 50.0
    layer = Int8Linear(linear)
    # Weights have 255 values a row, inputs 2 * 127 + 1 a vector.
    scales = linear.weight.abs().amax(1, keepdim=True) / 127
    weight = (linear.weight / scales).round() * scales
    scales = x.abs().amax(-1, keepdim=True) / (127 if vnni else 63)
    expected = nn.functional.linear((x / scales).round() * scales, weight, linear.bias)
    error = (expected - linear(x)).abs().mean()
    assert error > 0
    assert (layer(x) - expected).abs().mean() < 0.02 * error
    assert torch.equal(layer(x), torch.cat([layer(image[None]) for image in x]))
    rounded = nn.functional.linear(x, linear.weight.half().float(), linear.bias)
    torch.testing.assert_close(HalfLinear(linear)(x), rounded, atol=1e-4, rtol=1e-5)
    # After a GELU, nearly all codes are above 0, and errors smaller than in a symmetric range.
    linear.weight.copy_((linear.weight * 127 * 16).round() / 127)  # exact in 8 bits
    linear.weight[:, 0] = 1.0
    layers = Int8Linear(linear, after_gelu=True), Int8Linear(linear)
    x = nn.functional.gelu(torch.randn(2, 40, 256))
    errors = [(layer(x) - linear(x)).abs().mean() for layer in layers]
    assert 0 < 1.6 * errors[0] < errors[1]
    x = nn.functional.gelu(torch.full((1, 256), -0.75))  # near GELU's least
    error = (layers[0](x) - linear(x)).abs().mean()
    assert error < 0.05 * linear(x).abs().mean()


@pytest.mark.parametrize(("bf16", "amx"), [(True, True), (True, False), (False, False)])
def test_layers_suit_their_place_and_the_processor_and_scores_are_close(
    make_captioner, monkeypatch, bf16, amx
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    captioner, images = make_captioner(), 2 * torch.randn(6, 3, 48, 48)
    names = {n for n, layer in captioner.named_modules() if isinstance(layer, nn.Linear)}
    before = {name: value.clone() for name, value in captioner.state_dict().items()}
    quick = captioner.for_inference(torch.int8)
    for name in names:
        layer, last = quick.get_submodule(name), name.rpartition(".")[2]
        if name.startswith("visual_encoder."):
            dtype = torch.bfloat16 if amx and last == "qkv" else torch.float32
            assert type(layer) is Int8Linear and layer.dtype == dtype, name
            assert layer.after_gelu == (last == "fc2"), name
        elif bf16 and ".crossattention." in name and last in ("key", "value"):
            assert type(layer) is InferenceLinear and layer.dtype == torch.bfloat16, name
        else:
            assert type(layer) is HalfLinear, name
    exact, ours = captioner.encode(images), quick.encode(images)
    assert 0 < (ours - exact).abs().mean() < 0.05 * exact.abs().mean()
    details = captioner.generate_details(images, BEAM)
    scores = quick.generate_details(images, BEAM).scores
    torch.testing.assert_close(scores, details.scores, atol=0.1, rtol=0.1)
    encoded, ids = exact[:1], details.token_ids[0, 0]
    for ours, exact in zip(quick.score_tokens(encoded, ids), captioner.score_tokens(encoded, ids)):
        assert 0 < (ours - exact).abs().mean() < 0.1 * exact.abs().mean()
    torch.testing.assert_close(dict(captioner.state_dict()), before, rtol=0, atol=0)


def test_a_run_that_was_trained_compiled_is_captioned_in_int8_without_compilation():
    arguments = caption.parse_arguments(["checkpoint.pth", "photo.jpg", "--out", "a.jsonl"])
    changes = {"precision": "int8"}
    _, load = caption.checkpoint_loader(arguments, changes, torch.device("cpu"))
    assert {"precision": "int8", "compile": False} in load.args


def test_what_int8_does_not_support_is_one_line(scenes_config, tmp_path, monkeypatch):
    given = ["--config", scenes_config, f"output_dir={tmp_path}", "device=cpu", "precision=int8"]
    for changes, message in (
        ([], "precision is int8, which is only for inference"),
        (["model=rnn"], "precision is int8, which rnn "),
        (["compile=true", "--evaluate"], "compile is true, which cannot be combined with"),
    ):
        refused("captioning.train", *given, *changes, part=message)
    with pytest.raises(ValueError, match="is for CPUs; on cuda"):
        check_int8(torch.device("cuda"), False)
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["qnnpack"])
    part = "has no int8 kernels for this processor"
    refused("captioning.train", *given, "--evaluate", part=part)
