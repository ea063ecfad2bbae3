"""A captioner from a checkpoint draws no weights first, and has the checkpoint's all the same."""

import pytest
import torch
from timm.layers import trunc_normal_
from torch import nn

from captioning.config import load_config
from captioning.models.build import captioner_from
from captioning.models.skip_init import SkipInit


@pytest.mark.parametrize(
    "draw",
    [
        lambda weight: nn.init.trunc_normal_(weight, std=0.02),
        lambda weight: trunc_normal_(weight, std=0.02),
        nn.init.kaiming_uniform_,
        nn.init.xavier_normal_,
        lambda weight: nn.init.normal_(tensor=weight),
        lambda weight: weight.data.uniform_(-1, 1),
    ],
)
def test_nothing_is_drawn_within(draw):
    weight = nn.Parameter(torch.full((3, 4), 9.0))
    state = torch.get_rng_state()
    with SkipInit():
        draw(weight)
    assert torch.equal(torch.get_rng_state(), state)
    draw(weight)
    assert not torch.equal(torch.get_rng_state(), state) and (weight != 9).all()


def test_timms_truncated_normal_reads_and_writes_no_weight():
    weight = nn.Parameter(torch.full((3, 4), 9.0))
    with SkipInit():
        trunc_normal_(weight, std=0.02)
    assert (weight == 9).all()


def test_constants_are_set_and_buffers_computed_within():
    with SkipInit():
        norm = nn.LayerNorm(3)
        bias = nn.init.constant_(torch.empty(2), 0.5)
        places = torch.arange(2.0).mul_(0.5).add_(1)  # a buffer, which no checkpoint brings
    assert norm.weight.tolist() == [1, 1, 1] and bias.tolist() == [0.5, 0.5]
    assert places.tolist() == [1, 1.5]


def test_a_checkpoints_captioner_is_the_checkpoints_with_none_drawn(scenes_config, tmp_path):
    config = load_config(scenes_config, ["seed=3"])
    made_up, _ = captioner_from(config, None)
    torch.save({"model": made_up.state_dict()}, tmp_path / "made_up.pth")
    loaded, _ = captioner_from(config, str(tmp_path / "made_up.pth"))
    state = torch.get_rng_state()
    assert torch.equal(state, torch.manual_seed(3).get_state())
    for key, value in made_up.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
