"""Cached features equal computed ones, and belong to one network."""

import pytest
import torch

from baselines.image_encoder import ImageEncoder

NETWORK = "shufflenet_v2_x0_5"
SHAPE = (3, 3, 32, 32)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "features"


@pytest.fixture
def encoder(folder):
    settings = {"dim": 4, "finetune": False, "image_size": 32}
    return ImageEncoder(NETWORK, **settings, feature_folder=str(folder))


def count_calls(encoder):
    calls = []
    encoder.network.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
    return calls


def test_the_network_sees_a_training_image_once(encoder, folder):
    image = torch.randn(SHAPE)
    calls = count_calls(encoder)
    first = encoder(image)
    assert calls == [1, 1, 1] and len(list(folder.glob("*/*.safetensors"))) == 3
    again = encoder(image.flip(0))
    assert calls == [1, 1, 1]
    assert torch.equal(again, first.flip(0))
    encoder.cache = None
    torch.testing.assert_close(encoder(image), first, rtol=1e-4, atol=1e-5)


def test_captioning_reads_cached_features_and_writes_none(encoder, folder):
    image = torch.randn(SHAPE)
    encoder(image[:1])
    calls = count_calls(encoder.eval())
    encoder(image)
    assert calls == [1, 1] and len(list(folder.glob("*/*.safetensors"))) == 1


def test_features_of_other_weights_are_not_read(encoder, folder):
    image = torch.randn(SHAPE)
    first = encoder(image)
    other = ImageEncoder(NETWORK, dim=4, finetune=False, image_size=32)
    state = {**other.state_dict(), "projection.weight": encoder.projection.weight}
    encoder.load_state_dict({**state, "projection.bias": encoder.projection.bias})
    found = encoder(image)
    assert len(list(folder.iterdir())) == 2 and not torch.allclose(found, first)
    other.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(found, other(image), rtol=1e-4, atol=1e-5)


def test_a_truncated_file_is_computed_again(encoder, folder):
    image = torch.randn(SHAPE)
    first = encoder(image)
    for path in folder.glob("*/*.safetensors"):
        path.write_bytes(path.read_bytes()[:50])
    calls = count_calls(encoder)
    assert torch.equal(encoder(image), first) and calls == [1, 1, 1]
    assert torch.equal(encoder(image), first) and calls == [1, 1, 1]


def test_a_folder_that_cannot_be_written_to_is_one_warning_and_no_error(encoder, folder, caplog):
    folder.write_text("a file")
    image = torch.randn(SHAPE)
    encoder(image)
    encoder(image)
    assert [record.getMessage().partition(": cannot write ")[0] for record in caplog.records] == [
        "encoder_features"
    ]


def test_features_are_float32_under_autocast(encoder):
    image = torch.randn(SHAPE)
    with torch.autocast("cpu", torch.bfloat16):
        maps = encoder.cache(image, write=True)
    assert maps.dtype == torch.float32
    torch.testing.assert_close(maps, encoder.network(image), rtol=1e-4, atol=1e-5)
