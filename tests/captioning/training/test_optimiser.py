"""Which parameters are trained, by what, and at which share of the rate."""

import pytest
import torch
from torchvision.models import shufflenet_v2_x0_5

from captioning.config import load_config
from captioning.models.build import captioner_from
from captioning.training.optimiser import build_optimizer

CLASSIC = ["model=attn", "encoder=shufflenet_v2_x0_5", "encoder_weights=none", "encoder_dim=8"]
CLASSIC += ["hidden_dim=8", "embed_dim=8"]


def built(scenes_config, *overrides):
    config = load_config(scenes_config, overrides)
    captioner, _ = captioner_from(config, None)
    return captioner, *build_optimizer(captioner, config)


def test_blip_has_one_group_of_all_parameters(scenes_config):
    captioner, optimiser, shares = built(scenes_config, "weight_decay=0.3")
    assert type(optimiser) is torch.optim.AdamW and shares == [1.0]
    (group,) = optimiser.param_groups
    assert group["params"] == list(captioner.parameters())
    assert (group["weight_decay"], group["lr"]) == (0.3, 1e-3)


def test_word_vectors_may_have_a_rate_of_their_own_beside_the_encoders(scenes_config):
    rates = ["encoder_lr=1e-4", "embedding_lr=2e-2"]
    captioner, optimiser, shares = built(scenes_config, *CLASSIC, *rates)
    assert shares == pytest.approx([1.0, 0.1, 20])
    rest, encoder, words = (group["params"] for group in optimiser.param_groups)
    assert set(map(id, encoder)) == set(map(id, captioner.encoder.network.parameters()))
    assert words == [captioner.decoder.embedding.weight]
    assert id(words[0]) not in {id(p) for p in rest}
    every = [p for group in optimiser.param_groups for p in group["params"]]
    assert sorted(map(id, every)) == sorted(map(id, captioner.parameters()))


def test_an_encoder_that_stays_as_it_is_is_not_there(scenes_config, tmp_path):
    torch.save(shufflenet_v2_x0_5().state_dict(), tmp_path / "weights.pth")
    given = ["optimizer=adam", f"encoder_weights={tmp_path / 'weights.pth'}"]
    captioner, optimiser, shares = built(scenes_config, *CLASSIC, *given)
    assert type(optimiser) is torch.optim.Adam and shares == [1.0]
    trained = {id(p) for p in optimiser.param_groups[0]["params"]}
    assert trained == {
        *(id(p) for p in captioner.decoder.parameters()),
        *(id(p) for p in captioner.encoder.projection.parameters()),
    }
