"""Fixtures for the smallest forms of benchmarks."""

import json

import pytest
import transformers

from tests.programs import run_program


@pytest.fixture(scope="session")
def needs_peer():
    """Skip where transformers has no BLIP to compare with."""
    if not hasattr(transformers, "BlipForConditionalGeneration"):
        pytest.skip(f"transformers {transformers.__version__} has no BLIP")


@pytest.fixture
def quick_rows(tmp_path):
    """Return a function of a topic's name: its rows with --quick on the CPU, by name."""

    def rows(name):
        command = [name, "--quick", "--device", "cpu", "--output", tmp_path]
        assert run_program("benchmarks.topic", *command).code == 0
        content = json.loads((tmp_path / f"{name}.json").read_text())
        rows = {row["name"]: row for row in content["rows"]}
        assert content["quick"] and content["planned"] == list(rows)
        for row in rows.values():
            assert row["failed"] == {}
            for entry in row["contenders"].values():
                assert len(entry["times"]) == 1 and entry["median"] > 0
        return rows

    return rows
