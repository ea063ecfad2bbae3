"""The table of the two inputs' pixels: what is the same is 0, and auto-contrast is not."""

import pytest

pytest.importorskip("cv2", reason="OpenCV is not installed")

from benchmarks import exact_input, loader


def test_a_table_of_drawn_photos(tmp_path, capsys):
    paths = loader.draw_photos(tmp_path, (80, 60), 3)
    assert exact_input.main([*map(str, paths), "--size", "32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:18].strip(): float(line.split()[-1]) for line in lines[:-3]}
    assert rows.keys() == {"crop and flip", "whole augmentation", *exact_input.NAMES}
    for name in ("identity", "translate_x", "translate_y", "equalize"):
        assert rows[name] == 0
    assert 0 < rows["shear_x"] < rows["autocontrast"]
    assert rows["crop and flip"] < 0.5 and "whitens them" in lines[-2]


def test_what_is_no_photo_is_one_line(tmp_path, capsys):
    assert exact_input.main([str(tmp_path / "none.jpg")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'none.jpg'}: no such image")
