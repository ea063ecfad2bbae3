"""examples/table.py: SMILE tells more of a table than MLE, and no more of it is wrong."""

import os
import re
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_example_of_a_table(repository, tmp_path):
    pytest.importorskip("accelerate", reason="Trainer needs it, in the tests from Python 3.10")
    done = subprocess.run(
        [sys.executable, str(repository / "examples" / "table.py")],
        env={**os.environ, "PYTHONPATH": str(repository)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if re.match("(MLE|SMILE) ", line)]
    found = [map(float, re.findall(r"[\d.]+", line)) for line in lines]
    (mle_words, mle_facts, _), (words, facts, wrong) = found
    assert words > 1.5 * mle_words and facts > 1.5 * mle_facts and wrong < 0.05 * facts
