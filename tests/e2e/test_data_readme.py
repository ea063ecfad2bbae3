"""The examples of data/README.md are read."""

import re

from captioning.data.annotations import read_annotations


def test_every_format_shown_is_read(repository, tmp_path):
    page = (repository / "data" / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```(json|csv)\n(.*?)^```", page, re.S | re.M)
    assert [kind for kind, _ in examples] == ["json", "csv", "json"]
    for number, (kind, text) in enumerate(examples):
        file = tmp_path / f"{number}.{kind}"
        file.write_text(text, encoding="utf-8")
        samples = read_annotations(file, "test")
        assert samples[0].image_id == 42  # each example has the image number 42 first
        assert max(len(sample.captions) for sample in samples) == 2
