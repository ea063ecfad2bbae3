"""The captioning benchmark in its smallest form, and the captioners that it measures."""

import json

import pytest
import torch
import transformers

from benchmarks.captioners import NaiveCaptioner, our_captioner
from benchmarks.captioning import NEVER_ENDS, Captioners, compare, main
from decoding import DecodingSettings

needs_peer = pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"),
    reason=f"transformers {transformers.__version__} has no BLIP",
)


def test_naive_captioner_makes_the_same_captions():
    captioner = our_captioner(tiny=True).eval()
    for parameter in captioner.text_decoder.parameters():
        parameter.data.mul_(10)  # so that captions depend on the image
    images = 3 * torch.randn(4, 3, 48, 48)
    settings = DecodingSettings(num_beams=3, num_return=3, max_length=12, min_length=5)
    expected = captioner.generate_details(images, settings)
    naive = NaiveCaptioner(captioner).generate_details(images, settings)
    assert len({tuple(rows.flatten().tolist()) for rows in expected.token_ids}) > 1
    assert naive.token_ids.tolist() == expected.token_ids.tolist()
    torch.testing.assert_close(naive.scores, expected.scores, atol=1e-4, rtol=1e-4)


@needs_peer
def test_smallest_run(tmp_path, capsys):
    main(["--quick", "--output", str(tmp_path)])
    rows = json.loads((tmp_path / "captioning.json").read_text())["rows"]
    assert len(rows) == 10
    assert sum("original, fp32" in row["contenders"] for row in rows) == 4
    for row in rows:
        assert {"ours", "as it is", "transformers", "encoder"} <= set(row["contenders"])
        if row["precision"] == "fp32":
            assert row["agreement"] == 1
    assert "ms a step" in capsys.readouterr().out


@needs_peer
def test_a_compiled_copy_takes_part_on_a_gpu(monkeypatch, quick_compiler):
    monkeypatch.setattr("benchmarks.captioning.COMPILED", True)
    captioners = Captioners(tiny=True)
    captioners.end_with(NEVER_ENDS)
    row = compare(captioners, "fp32", batch=3, length=6, rounds=1, ends="")
    assert "compiled" in row["contenders"] and quick_compiler.frame_count == 2
    assert row["agreement_compiled"] == 1
