"""The GPU's tables of docs/benchmarks.md are those of the file beside it, or say that none is."""

import copy
import json

import pytest

from benchmarks.gpu_tables import UNMEASURED, between, main, tables, with_tables
from benchmarks.measure import row

PAGE = "# Page\n\n<!-- from gpu.json -->\nold\n<!-- to here -->\n\nrest\n"


def test_page_and_file_agree(repository):
    page, kept = repository / "docs" / "benchmarks.md", repository / "docs" / "gpu.json"
    expected = tables(json.loads(kept.read_text())) if kept.exists() else UNMEASURED
    assert between(page.read_text()) == expected


def entry(name, seconds, peer, **facts):
    memory = {who: 2**20 * (number + 1) for number, who in enumerate(seconds)}
    made = row(name, seconds, peer, memory, (64, "captions"), **facts)
    return {"row": name, "error": "", "seconds": 1.0, **made}


@pytest.fixture
def content():
    """What a run on a made-up card could have found."""
    empty = {"ended": "", "seconds": 1.0, "lacking": False}
    empty |= {"checks": [], "rows": [], "not_checked": [], "not_measured": []}
    goal = {"ours": [0.1, 0.2, 0.1], "original's": [0.5, 0.5, 1.0], "compiled": [0.05, 0.05, 0.05]}
    captioning = entry(
        "bf16, batch 64, compiled", goal, "original's", failed={"transformers": "oom"}
    )
    captioning["contenders"]["compiled"]["share"] = 0.625
    eager = entry("bf16, batch 64", {"ours": [9.0], "original's": [9.0]}, "original's")
    check = {"check": "tokens are equal", "error": "", "seconds": 1.0, "said": ["all 4 of 4"]}
    wrong = {
        "check": "memory is flat",
        "error": "AssertionError: it grew",
        "seconds": 1,
        "said": [],
    }
    return {
        "time": "2027-01-02T03:04:05Z",
        "rehearsal": False,
        "machine": {"gpu": "Made-up 1", "driver": "999", "torch": "2.99", "cores": 16},
        "ceilings": {"flops": {"bf16": 8e14}, "bytes": 3e12},
        "parts": {
            "captioning": {**empty, "checks": [check], "rows": [captioning, eager]},
            "training": {**empty, "checks": [wrong], "not_measured": ["bf16, compiled"]},
            "runs": {**empty, "ended": "needs pydantic"},
        },
    }


def test_tables_hold_what_was_found(content):
    text = tables(content)
    assert "Made-up 1, driver 999" in text and "bf16 800; a copy" in text and "3.00 TB/s" in text
    assert "ok      captioning: tokens are equal\n          all 4 of 4" in text
    assert "FAILED  training: memory is flat\n          AssertionError: it grew" in text
    header, line = text.split("```")[3].strip().splitlines()  # the compiled row stands for both
    assert line.split()[:3] == ["bf16,", "batch", "64,"] and "transformers" not in header
    assert "640.0" in line and "1280.0" in line and "5.00 (2.50-10.00)" in line and "0.62" in line
    assert "captioning takes up to 1280 a second" in text
    missing = text.splitlines()[-1]
    assert missing == (
        "Not measured: captioning, bf16, batch 64, compiled: transformers (oom); "
        "training, bf16, compiled; runs needs pydantic."
    )


def test_the_program_writes_page_and_file(content, tmp_path, capsys):
    (tmp_path / "benchmarks.md").write_text(PAGE)
    found = tmp_path / "found.json"
    found.write_text(json.dumps(content))
    assert main([str(found), "--docs", str(tmp_path)]) == 0
    page = (tmp_path / "benchmarks.md").read_text()
    assert between(page) == tables(content)
    assert page.startswith("# Page\n\n<!--") and page.endswith("-->\n\nrest\n")
    assert json.loads((tmp_path / "gpu.json").read_text()) == content
    other = copy.deepcopy(content)
    other["machine"]["gpu"] = "Another"
    assert between(page) != tables(other)
    found.write_text(json.dumps({**content, "rehearsal": True}))
    assert main([str(found), "--docs", str(tmp_path)]) == 2
    assert "measures nothing" in capsys.readouterr().err


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="lacks a mark"):
        with_tables("# Page\n", "text")
