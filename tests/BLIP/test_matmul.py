"""Which library computes matrix products."""

import pytest

from BLIP.kernels import matmul


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD", None])
def test_a_processor_counts_as_intels_unless_cpuinfo_names_another_maker(
    tmp_path, monkeypatch, vendor
):
    monkeypatch.setattr(matmul, "CPUINFO", tmp_path / "cpuinfo")
    if vendor:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    assert matmul.is_intel() is (vendor != "AuthenticAMD")
