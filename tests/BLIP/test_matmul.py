"""Whose products are taken."""

import platform

import pytest
import torch

from BLIP.kernels import matmul
from BLIP.kernels.matmul import has_bf16, is_intel, isa_allows


@pytest.mark.parametrize(
    ("maker", "mkls"), [("GenuineIntel", True), ("AuthenticAMD", False), (None, False)]
)
def test_the_processors_maker(tmp_path, monkeypatch, maker, mkls):
    cpuinfo = tmp_path / "cpuinfo"
    lines = ["processor\t: 0", *([f"vendor_id\t: {maker}"] if maker else []), "flags\t\t: avx512f"]
    cpuinfo.write_text("\n".join(lines))
    monkeypatch.setattr(platform, "processor", lambda: f"Family 6 Model 143, {maker}")
    for file in (cpuinfo, tmp_path / "none"):
        monkeypatch.setattr(matmul, "CPUINFO", file)
        assert is_intel() is mkls


@pytest.mark.parametrize(
    ("most", "bf16", "amx"),
    [
        (None, True, True),
        ("default", True, True),
        ("AVX512_CORE_AMX", True, True),
        ("AVX512_CORE_BF16", True, False),
        ("avx512_core_vnni", False, False),
        ("AVX2", False, False),
    ],
)
def test_older_instructions_alone(monkeypatch, most, bf16, amx):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if most:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)
    for has in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        assert has_bf16() == (has and bf16)
    assert isa_allows("AMX") == amx
