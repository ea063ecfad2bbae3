"""Classic captioners that are built from a configuration."""

import pytest
import torch

from captioning.config import load_config
from captioning.models.build import captioner_from, trained_config
from captioning.runtime.errors import UserError
from tests.programs import raises_line
from tests.tiny import CLASSIC


@pytest.fixture
def build(scenes_config):
    def build(*overrides):
        config = load_config(scenes_config, [*CLASSIC, "prompt=", *overrides])
        return captioner_from(config, None)[0]

    return build


def test_word_vectors_of_a_file_and_of_length_one(build, tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(f"triangle 3 4{' 0' * 14}\n")
    captioner = build("model=rnn", f"word_vectors={path}", "normalise_embeddings=true")
    weight = captioner.decoder.embedding.weight
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
    triangle = captioner.tokenizer.ids["triangle"]
    torch.testing.assert_close(weight[triangle, :2].detach(), torch.tensor([0.6, 0.8]))


def test_a_checkpoint_of_a_run_with_torchvisions_network_names_its_commit(build, tmp_path):
    captioner, path = build("model=lstm", "encoder=resnet18"), str(tmp_path / "former.pth")
    weights = {
        name.replace("encoder.network.body.", "encoder.network."): value
        for name, value in captioner.state_dict().items()
        if name not in ("encoder.network.mean", "encoder.network.std")
    }
    # Keys of that time, which have no effect.
    config = {**captioner.config.model_dump(), "encoder_features": "cache", "tie_embeddings": False}
    content = {"config": config, **captioner.saved_beside_weights()}
    torch.save({"model": captioner.state_dict(), **content}, path)
    assert captioner_from(trained_config(path, None), path)[1].endswith("every key matched")
    torch.save({"model": weights, **content}, path)
    with raises_line(UserError, "former.pth has torchvision's network; use it with commit 467"):
        captioner_from(trained_config(path, None), path)


def test_a_copy_is_built_from_what_is_saved_beside_the_weights(build):
    """As for generation in a sharded run."""
    captioner = build("model=lstm")
    copy, _ = captioner_from(captioner.config, None, captioner.saved_beside_weights())
    copy.load_state_dict(captioner.state_dict())
    assert copy.tokenizer.words == captioner.tokenizer.words
