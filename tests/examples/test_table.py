"""examples/table.py: SMILE tells more of a table than MLE, and no more of it is wrong."""

import re
import runpy

import pytest


@pytest.mark.slow
def test_smile_describes_more_of_a_row_than_mle(repository, tmp_path, monkeypatch, capsys):
    pytest.importorskip("accelerate", reason="Trainer needs it, in the tests from Python 3.10")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(repository / "examples" / "table.py"), run_name="__main__")
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if re.match("(MLE|SMILE) ", line)]
    found = [map(float, re.findall(r"[\d.]+", line)) for line in lines]
    (mle_words, mle_facts, _), (words, facts, wrong) = found
    assert words > 1.5 * mle_words and facts > 1.5 * mle_facts and wrong < 0.05 * facts
