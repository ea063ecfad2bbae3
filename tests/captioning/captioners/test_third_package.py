"""A captioner package of another project works in every program once it is registered."""

from typing import Literal

from pydantic import create_model

from captioning.captioners.registry import CAPTIONERS
from captioning.config import Config
from tests.captioning.captioners import fake
from tests.programs import in_every_program
from tests.tiny import TINY_RUN

KEYS = """
model: fake
fake_width: 6
lr_schedule: exponential
device: cpu
min_length: 1
metrics: [length, facts]
facts_file: scenes.json
drop_image: 0.3
"""


def test_it_works_in_every_program(scenes, tmp_path, monkeypatch):
    """The fake is named as if it had been in the registry when the configuration was imported."""
    monkeypatch.setitem(CAPTIONERS, "fake", fake.__name__)
    names = Literal[tuple(CAPTIONERS)]
    with_fake = create_model("Config", __base__=(fake.Keys, Config), model=(names, "blip"))
    monkeypatch.setattr("captioning.config.config.Config", with_fake)
    text = TINY_RUN.replace("batch_size: 8", "batch_size: 4").format(data=scenes) + KEYS
    changes = ("fake_width=7", "precision=fp16")
    said, page = in_every_program(tmp_path, text, scenes / "images", *changes)
    assert "no checkpoint: the weights are a fake's" in said
    assert "had other settings (fake_width was 6, is 7)" in said
    assert "error: precision is fp16, which a fake has not; try fp32" in said
    assert "fake_width: 6" in (tmp_path / "run" / "config.yaml").read_text()
    assert page["label"] == "Fake, MLE+SMILE 0.5:0.5"
