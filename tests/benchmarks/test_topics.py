"""Topics measure what they say, and contenders do the same work."""

import json
import sys

import pytest
import torch
import transformers

import smile
from benchmarks.captioners import hf_captioner, our_captioner, random_images
from benchmarks.objective import TINY, gradients, library_losses, our_losses
from benchmarks.training import random_captions, their_loss
from BLIP.int8 import has_int8
from tests.programs import run_program

CPU = torch.device("cpu")
OURS = ["from hidden states", "naive"]
PEER = ["transformers"]
CONTENDERS = {  # {topic: {start of a row's title: (its peers, the other contenders)}}
    "captioning": {"fp32": (PEER, ["ours", *["int8"] * has_int8(CPU)]), "bf16": (PEER, ["ours"])},
    "decoding": {"batch": (["plain"], ["guidance", "mmi"])},
    "training": {"step": (PEER, ["ours", "ours, MLE + SMILE", "ours, 5 captions an image"])},
    "objective": {
        "SMILE": ([*library_losses(CPU)], OURS),
        "focal": (["naive"], ["from hidden states"]),
    },
    "loader": {"80 x 60": (["original"], ["ours"])},
}
needs_peer = pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"), reason="transformers has no BLIP"
)


@needs_peer
@pytest.mark.parametrize("topic", CONTENDERS)
def test_a_topic_measures_its_contenders(topic, tmp_path):
    given = ["--quick", "--device", "cpu", "--output", tmp_path]
    assert run_program("benchmarks", topic, *given).code == 0
    rows = json.loads((tmp_path / f"{topic}.json").read_text())["rows"]
    for start, (peers, others) in CONTENDERS[topic].items():
        found = [row for row in rows if row["title"].startswith(start)]
        assert found and all(row["failed"] == {} and row["peer"] in peers for row in found)
        assert all(row["contenders"].keys() == {*peers, *others} for row in found)


def computed(loss, sizes):
    return [value.clone() for value in gradients(loss, sizes, CPU)()]


@pytest.mark.parametrize("library", library_losses(CPU))
def test_libraries_compute_mle_without_smoothing_and_bias(library):
    sizes = (*TINY[:-1], 0.0)
    ours = computed(our_losses("MLE", 0.0)["from hidden states"], sizes)
    assert len(ours) == 3
    torch.testing.assert_close(ours, computed(library_losses(CPU)[library], sizes))


OTHER = """
from torch.nn.functional import cross_entropy, linear
from types import SimpleNamespace

class Objective:
    def __init__(self, spec, label_smoothing):
        if spec != "mle":
            raise ValueError(spec)
        self.smoothing = label_smoothing

    def from_hidden(self, hidden, weight, bias, labels):
        logits = linear(hidden, weight, bias).flatten(0, 1)
        loss = cross_entropy(logits, labels.flatten(), label_smoothing=self.smoothing)
        return SimpleNamespace(loss=loss)
"""


def test_the_package_of_another_checkout_takes_part_where_it_has_the_objective(tmp_path):
    (tmp_path / "smile").mkdir()
    (tmp_path / "smile" / "__init__.py").write_text(OTHER)
    losses = our_losses("MLE", TINY[-1], tmp_path)
    ours, naive, theirs = (computed(loss, TINY) for loss in losses.values())
    torch.testing.assert_close(theirs + naive, ours + ours)
    assert list(losses) == [*OURS, f"that of {tmp_path}"] and smile is sys.modules["smile"]
    assert list(our_losses("SMILE", TINY[-1], tmp_path)) == OURS


@needs_peer
def test_transformers_captioner_has_our_weights_and_our_loss():
    ours = our_captioner(tiny=True).eval()
    theirs = hf_captioner(ours).eval()
    image, texts = random_images(ours, 4), random_captions(True, 4)
    torch.testing.assert_close(their_loss(ours, theirs, image, texts), ours(image, texts).loss)
