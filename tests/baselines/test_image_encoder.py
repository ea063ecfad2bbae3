"""Image encoders of every torchvision family: positions, normalisation, training."""

import pytest
import torch
import torchvision
from torchvision.transforms.functional import normalize

from baselines.image_encoder import ImageEncoder
from baselines.torchvision_network import encoder_names

SMALL = "shufflenet_v2_x0_5"
QUICK = ("resnet18", "squeezenet1_1", "mobilenet_v3_small")
SLOW = ("densenet121", SMALL, "mobilenet_v2", "mnasnet0_5", "regnet_x_400mf")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_the_map_is_what_torchvisions_head_takes(name):
    encoder = ImageEncoder(name).eval()
    whole = torchvision.models.get_model(name, weights=None).eval()
    # The features under the names that they have in the whole network, in the same order.
    own, theirs = encoder.network.state_dict(), whole.state_dict()
    for value, (key, expected) in zip(own.values(), theirs.items()):
        assert value.shape == expected.shape, key
        expected.copy_(value)  # into the whole network
    image = torch.randn(2, 3, 96, 64)
    annotations = encoder(image)
    places = encoder.network(image).flatten(2).transpose(1, 2)  # row by row
    torch.testing.assert_close(annotations, places)
    assert encoder.dim == annotations.size(2)
    features = []
    head = [m for m in whole.modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv2d))][-1]
    head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    whole(image)
    if features[0].dim() == 4:  # squeezenet's head is a convolution of the map itself
        expected = features[0].flatten(2).transpose(1, 2)
        torch.testing.assert_close(annotations, expected)
        return
    pooled = annotations.mean(1)
    if name.startswith("mobilenet_v3"):  # a layer of the head comes before its last
        pooled = whole.classifier[:-1](pooled)
    torch.testing.assert_close(features[0], pooled, rtol=1e-4, atol=1e-5)


def test_every_listed_network_can_be_named():
    names = encoder_names()
    some = {"resnet152", "resnext50_32x4d", "wide_resnet50_2", "mnasnet1_3", "regnet_y_128gf"}
    assert {*some, *QUICK, *SLOW} <= set(names)
    with pytest.raises(ValueError, match="encoder: 'vit_b_16' is unknown"):
        ImageEncoder("vit_b_16")


@pytest.mark.parametrize(("side", "grid"), [(128, 2), (64, 5)])
def test_a_grid_by_pooling_or_by_interpolation(side, grid):
    encoder = ImageEncoder(SMALL, dim=7, grid=grid).eval()
    image = torch.randn(2, 3, side, side)
    annotations = encoder(image)
    assert annotations.shape == (2, grid * grid, 7) and encoder.dim == 7
    features = encoder.projection(encoder.network(image))
    if side == 128:  # 4 by 4 places to 2 by 2: means of four
        expected = features.unflatten(3, (2, 2)).unflatten(2, (2, 2)).mean((3, 5))
    else:
        size = (grid, grid)
        expected = torch.nn.functional.interpolate(features, size, mode="bilinear")
    torch.testing.assert_close(annotations, expected.flatten(2).transpose(1, 2))


def test_annotations_are_normalised_channel_by_channel():
    encoder = ImageEncoder(SMALL, dim=7, grid=3, norm=True, finetune=False)
    weight, bias = (torch.nn.init.normal_(p).double() for p in encoder.norm.parameters())
    image = torch.randn(4, 3, 64, 64)
    found = encoder(image)
    encoder.norm, norm = torch.nn.Identity(), encoder.norm
    plain = encoder(image).double()  # (4, 9, 7)
    variance, mean = torch.var_mean(plain, (0, 1), correction=0)
    expected = weight * (plain - mean) / (variance + 1e-5).sqrt() + bias
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
    encoder.norm = norm.eval()
    mean, variance = 0.1 * mean, 0.9 + 0.1 * plain.var((0, 1))
    expected = weight * (plain - mean) / (variance + 1e-5).sqrt() + bias
    torch.testing.assert_close(encoder(image), expected.float(), rtol=1e-4, atol=1e-4)


def test_a_batch_of_one_place_is_refused_exactly_where_batch_norm_refuses_it():
    normed = {"finetune": False, "norm": True, "dim": 5}
    for name, size, settings in [
        *((SMALL, 32, {}), (SMALL, 64, {}), (SMALL, 32, {"finetune": False})),
        *(("squeezenet1_1", 32, {}), ("resnet18", 32, {})),
        *((SMALL, 32, normed), (SMALL, 64, normed)),
        *((SMALL, 32, {**normed, "grid": 2}), (SMALL, 64, {**normed, "grid": 1})),
    ]:
        encoder = ImageEncoder(name, **settings, image_size=size).train()
        one = torch.randn(1, 3, size, size)
        if encoder.min_batch_size == 1:
            encoder(one)
        else:
            with pytest.raises(ValueError, match="more than 1 value per channel"):
                encoder(one)
            encoder(torch.cat([one, one]))
    assert ImageEncoder(SMALL, image_size=32).min_batch_size == 2
    assert ImageEncoder(SMALL, image_size=64, grid=1, **normed).min_batch_size == 2


def test_images_are_normalised_with_imagenets_mean_for_torchvision():
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    encoder = ImageEncoder(SMALL, mean=mean, std=std).eval()
    pixels = torch.rand(1, 3, 64, 64)
    image = normalize(pixels, mean, std)
    expected = encoder.network(normalize(pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = expected.flatten(2).transpose(1, 2)
    torch.testing.assert_close(encoder(image), expected, rtol=1e-4, atol=1e-5)


def test_a_network_learns_unless_it_is_frozen():
    images = torch.randn(2, 3, 64, 64)
    encoder = ImageEncoder(SMALL).train()
    encoder(images).square().sum().backward()
    convolution, norm = encoder.network[0][:2]
    assert convolution.weight.grad.abs().sum() > 0 and norm.num_batches_tracked == 1
    encoder = ImageEncoder(SMALL, dim=8, finetune=False).train()
    before = {key: value.clone() for key, value in encoder.network.state_dict().items()}
    encoder(images).sum().backward()
    after = encoder.network.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert encoder.projection.weight.grad is not None
    assert all(p.grad is None and not p.requires_grad for p in encoder.network.parameters())
