"""The GPU's tables of docs/benchmarks.md are those of the file beside it, or say that none is."""

import json

import pytest

from benchmarks.gpu_tables import UNMEASURED, between, main, tables, with_tables
from benchmarks.measure import row

PAGE = "# Page\n\n<!-- from gpu.json -->\nold\n<!-- to here -->\n\nrest\n"


def test_page_and_file_agree(repository):
    page, kept = repository / "docs" / "benchmarks.md", repository / "docs" / "gpu.json"
    expected = tables(json.loads(kept.read_text())) if kept.exists() else UNMEASURED
    assert between(page.read_text()) == expected


@pytest.fixture
def content():
    """A run on an imagined card."""
    empty = {"ended": "", "seconds": 1.0, "lacking": False, "planned": [], "rows": []}
    seconds = {"ours": [0.1, 0.2, 0.1], "original": [0.5, 0.5, 1.0], "compiled": [0.05, 0.05, 0.05]}
    memory = {who: 2**20 * (number + 1) for number, who in enumerate(seconds)}
    measured = row(seconds, "original", memory, (64, "captions"), failed={"transformers": "oom"})
    rows = [
        {"name": "check: tokens are equal", "notes": ["all 4 of 4"]},
        {"name": "bf16, batch 64", **measured},
        {"name": "bf16, batch 1", **row({"ours": [0.004]}, "ours")},
    ]
    wrong = {"name": "check: memory is flat", "error": "AssertionError: it grew"}
    machine = {"gpu": "Imagined 1", "driver": "999", "torch": "2.99"}
    return {
        "time": "2027-01-02T03:04:05Z",
        "rehearsal": False,
        "parts": {
            "ceilings": {**empty, "machine": machine},
            "captioning": {**empty, "rows": rows, "planned": [row["name"] for row in rows]},
            "training": {**empty, "rows": [wrong], "planned": [wrong["name"], "bf16, compiled"]},
            "runs": {**empty, "ended": "needs pydantic"},
        },
    }


def test_the_card_is_told_where_the_ceilings_ended_before_their_first_row(content):
    content["parts"]["runs"]["machine"] = content["parts"]["ceilings"].pop("machine")
    assert tables(content).startswith("gpu Imagined 1, driver 999, torch 2.99.\n")


def test_tables_hold_the_results(content):
    text = tables(content)
    assert text.startswith("gpu Imagined 1, driver 999, torch 2.99.\n")
    captioning, training = text.split("```")[1].splitlines(), text.split("```")[3].splitlines()
    assert captioning[1:3] == ["check: tokens are equal", "  all 4 of 4"]
    assert captioning[4] == "bf16, batch 64"
    times = [*("100.0", "640.00", "captions"), *("5.00", "2.50-10.00", "1.0", "0.500")]
    assert captioning[6].split() == ["ours", *times]
    assert captioning[9].split() == ["transformers", "FAILED:", "oom"]
    assert training[1:3] == ["check: memory is flat", "  FAILED: AssertionError: it grew"]
    missing = "Not measured: training, bf16, compiled; runs needs pydantic."
    assert text.splitlines()[-1] == missing


def test_the_program_writes_page_and_file(content, tmp_path, capsys):
    (tmp_path / "benchmarks.md").write_text(PAGE)
    found = tmp_path / "found.json"
    found.write_text(json.dumps(content))
    assert main([str(found), "--docs", str(tmp_path)]) == 0
    page = (tmp_path / "benchmarks.md").read_text()
    assert between(page) == tables(content)
    assert page.startswith("# Page\n\n<!--") and page.endswith("-->\n\nrest\n")
    assert json.loads((tmp_path / "gpu.json").read_text()) == content
    found.write_text(json.dumps({**content, "rehearsal": True}))
    assert main([str(found), "--docs", str(tmp_path)]) == 2
    assert "measures nothing" in capsys.readouterr().err


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="lacks a mark"):
        with_tables("# Page\n", "text")
