"""Whose products are taken."""

import platform

import pytest

from BLIP.products import of_mkls_maker


@pytest.mark.parametrize(
    ("maker", "mkls"), [("GenuineIntel", True), ("AuthenticAMD", False), (None, False)]
)
def test_the_processors_maker(tmp_path, monkeypatch, maker, mkls):
    cpuinfo = tmp_path / "cpuinfo"
    lines = ["processor\t: 0", *([f"vendor_id\t: {maker}"] if maker else []), "flags\t\t: avx512f"]
    cpuinfo.write_text("\n".join(lines))
    assert of_mkls_maker(cpuinfo) is mkls
    monkeypatch.setattr(platform, "processor", lambda: f"Family 6 Model 143, {maker}")
    assert of_mkls_maker(tmp_path / "none") is mkls
