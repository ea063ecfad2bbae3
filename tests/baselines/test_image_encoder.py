"""Image encoders: timm's networks, torchvision's names for them, positions, training."""

from unittest.mock import Mock
from urllib.error import URLError

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torchvision.transforms.functional import normalize

from baselines.image_encoder import ImageEncoder
from tests.markers import slow
from tests.programs import raises_line
from tests.tiny import classic_config

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5,) * 3, (0.5,) * 3


def make(encoder="timm/test_resnet", weights="none", normalisation=IMAGENET, **keys):
    keys = {"image_size": 64, **keys}
    return ImageEncoder(classic_config(encoder=encoder, **keys), weights, normalisation)


def shaken(name):
    network = torchvision.models.get_model(name)
    for value in network.state_dict().values():
        if value.ndim == 1:  # biases, and weights and statistics of batch norms
            value.uniform_(0.5, 1.5)
    return network


def torchvision_map(network, image):
    if hasattr(network, "features"):  # DenseNet pools in `forward`
        return network.features(image).relu()
    return torch.nn.Sequential(*[*network.children()][:-2])(image)  # without pooling and head


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "regnet_x_400mf", slow("resnext50_32x4d"), slow("wide_resnet50_2")),
        *(slow("densenet121"), slow("regnet_y_400mf"), slow("regnet_x_1_6gf")),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_a_network_under_torchvisions_name_computes_torchvisions_features(name, training, tmp_path):
    theirs = shaken(name)
    torch.save(theirs.state_dict(), tmp_path / "torchvision.pth")
    encoder = make(name, str(tmp_path / "torchvision.pth")).train(training)
    theirs.train(training)
    image = torch.randn(2, 3, 64, 64)
    expected = torchvision_map(theirs, image)
    assert torch.equal(encoder(image), expected.flatten(2).transpose(1, 2))
    # The state of the optimizer counts the parameters.
    heads = ("fc.", "classifier.")
    shapes = [p.shape for n, p in theirs.named_parameters() if not n.startswith(heads)]
    assert shapes == [p.shape for p in encoder.network.parameters()]


def test_the_map_is_what_timms_classifier_pools():
    encoder = make("timm/mobilenetv2_035").eval()
    whole = timm.create_model("mobilenetv2_035").eval()
    whole.load_state_dict({**whole.state_dict(), **encoder.network.body.state_dict()})
    image = torch.randn(2, 3, 64, 64)
    annotations = encoder(image)
    assert annotations.shape == (2, 4, 1280) and encoder.dim == 1280
    expected = whole(image)
    torch.testing.assert_close(
        whole.classifier(annotations.mean(1)), expected, rtol=1e-4, atol=1e-4
    )


def test_positions_are_patches_row_by_row_also_of_a_map_whose_channels_come_last(monkeypatch):
    encoder = make("timm/vit_tiny_patch16_224", normalisation=HALF, image_size=48).eval()
    image = torch.randn(1, 3, 48, 48)
    tokens = encoder.network.body.forward_features(image)  # class token first
    torch.testing.assert_close(encoder(image), tokens[:, 1:])
    assert encoder.network(image)[0, :, 1, 2].tolist() == encoder(image)[0, 3 + 2].tolist()
    create, small = timm.create_model, {"depths": (1,) * 4, "embed_dim": 24, "window_size": 3}
    monkeypatch.setattr(timm, "create_model", lambda name, **more: create(name, **small, **more))
    encoder = make("timm/swin_tiny_patch4_window7_224", image_size=96).eval()
    image = torch.randn(1, 3, 96, 96)
    features = encoder.network.body.forward_features(image)  # (1, 3, 3, 192)
    torch.testing.assert_close(encoder(image), features.flatten(1, 2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "timm/test_resnet"])
def test_images_get_the_normalisation_of_the_weights(name):
    pixels = torch.rand(1, 3, 64, 64)
    encoder = make(name, normalisation=((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))).eval()
    found = encoder(normalize(pixels, (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)))
    cfg = encoder.network.body.pretrained_cfg
    expected = encoder.network.body.forward_features(normalize(pixels, cfg["mean"], cfg["std"]))
    expected = expected.flatten(2).transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    again = make(name, normalisation=((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))).eval()
    encoder.network.mean.fill_(0.3)  # of weights of its own, as a checkpoint has them
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(pixels), encoder(pixels))


@pytest.mark.parametrize(("side", "grid"), [(128, 2), (64, 5)])
def test_a_grid_by_pooling_or_by_interpolation_normalised_channel_by_channel(side, grid):
    encoder = make(encoder_dim=7, encoder_size=grid, encoder_norm=True, encoder_lr=0)
    image = torch.randn(2, 3, side, side)
    features = encoder.projection(encoder.network(image))
    if side == 128:  # 4 by 4 positions to 2 by 2: means of four
        expected = features.unflatten(3, (2, 2)).unflatten(2, (2, 2)).mean((3, 5))
    else:
        expected = torch.nn.functional.interpolate(features, (grid, grid), mode="bilinear")
    expected = expected.flatten(2).transpose(1, 2)  # (2, grid * grid, 7)
    variance, mean = torch.var_mean(expected, (0, 1), correction=0)
    expected = (expected - mean) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(encoder(image), expected, rtol=1e-4, atol=1e-4)
    assert encoder.dim == 7


def test_a_network_learns_unless_it_is_frozen():
    images = torch.randn(2, 3, 64, 64)
    encoder = make("timm/convnext_atto")
    encoder(images).sum().backward()
    for name, parameter in encoder.named_parameters():  # the map does not depend on the head's
        assert (parameter.grad is not None) == parameter.requires_grad == ("head" not in name), name
    encoder = make(encoder_dim=8, encoder_lr=0)
    before = {key: value.clone() for key, value in encoder.network.state_dict().items()}
    encoder(images).sum().backward()
    after = encoder.network.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert encoder.projection.weight.grad is not None
    assert all(p.grad is None and not p.requires_grad for p in encoder.network.parameters())


def test_weights_of_a_file_are_loaded_and_those_of_another_network_refused(tmp_path):
    whole, path = timm.create_model("test_resnet"), tmp_path / "weights.safetensors"
    save_file(whole.state_dict(), path)
    found = make(weights=str(path)).network.body.state_dict()
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in found.items())
    with raises_line(ValueError, "encoder test_efficientnet, of timm", "weights.safetensors"):
        make("timm/test_efficientnet", str(path))


REFUSED = {  # encoder and encoder_weights, and parts of the error
    "timm/nothing none": ["nothing, of timm, does not work with", "Unknown model (nothing)"],
    "timm/vit_tiny_patch16_224 none": ["image_size 10 ", ": Calculated padded input size"],
    "resnet18 default": ["resnet18.tv_in1k", "encoder_weights default (see timm.list_models(); de"],
    "resnet18 nowhere.pth": ["resnet18.tv_in1k", "encoder_weights nowhere.pth"],
}


@pytest.mark.parametrize("given", REFUSED)
def test_a_network_or_weights_that_there_are_not_are_one_line(given, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    refuse = Mock(side_effect=URLError("no route to host"))
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", refuse)
    with raises_line(ValueError, *REFUSED[given]):
        make(*given.split(), image_size=10)
