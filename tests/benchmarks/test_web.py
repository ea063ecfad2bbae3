"""The programs that measure the page of docs/web.md, in their smallest form."""

import pytest
from PIL import Image

from benchmarks import web_equality
from benchmarks.web_captioners import find_programs
from captioning.runtime.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def programs():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    try:
        find_programs()
    except UserError as error:
        pytest.skip(str(error))


def test_speed(quick_rows):
    (row,) = quick_rows("web").values()
    contenders = {"torch", "page", "page, no threads", "Node", "runner"}
    assert row["peer"] == "torch" and set(row["contenders"]) == contenders
    assert row["notes"][0].startswith("MB to download: 0.")


def test_equality(tmp_path, capsys):
    for index in range(2):
        Image.effect_noise((64, 90), 60).convert("RGB").save(tmp_path / f"{index}.jpg")
    assert web_equality.main([str(tmp_path), "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("6 images")
    for name in ("Node, 32 bits", "Chromium, 32 bits", "Chromium, 32 bits, own resizing"):
        assert f"| {name} | 100.0 | 100.0 |" in lines
    assert len(lines) == 4 + 2 + 7 + 1


def test_few_photos_are_refused(tmp_path, capsys):
    assert web_equality.main([str(tmp_path)]) == 2
    error = f"error: {tmp_path} has 0 JPEG photos; 20 are needed\n"
    assert capsys.readouterr().err == error
