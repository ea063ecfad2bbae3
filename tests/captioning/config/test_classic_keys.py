"""The keys of the classic captioners, and what does not go together."""

import pytest

from baselines import MODELS
from baselines.decoder import SCHEDULES
from captioning.config import config_class, load_config
from captioning.runtime.errors import UserError

MINIMAL = "image_root: a\nann_root: b\n"


@pytest.fixture
def minimal(tmp_path):
    path = tmp_path / "least.yaml"
    path.write_text(MINIMAL)
    return path


def test_models_and_schedules_are_those_of_the_package():
    fields = config_class("rnn").model_fields
    assert {"blip", *MODELS} <= set(fields["model"].annotation.__args__)
    assert fields["teacher_forcing"].annotation.__args__ == SCHEDULES


def test_an_image_of_any_size_suits_a_classic_captioner(minimal):
    assert load_config(minimal, ["model=rnn", "image_size=100"]).image_size == 100
    with pytest.raises(UserError, match="must be a multiple of 16"):
        load_config(minimal, ["image_size=100"])
