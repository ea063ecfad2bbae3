"""What plain SMILE imports, in a process of its own, in which nothing else has imported more."""

import subprocess
import sys

import pytest

CODE = """
import sys
from smile import Objective

def names():
    return {name for name in sys.modules if name.startswith("smile.")}

Objective({"mle": 0.01, "smile": 0.99})
print(any("alternatives." in name or "hf" in name or "sharded" in name for name in names()))
import smile.hf
print({"smile.hf.trainer", "smile.hf.packing_check", "smile.alternatives.interface"} & names())
Objective("focal")
from smile.hf import SmileLossMixin
print({name for name in names() if name.startswith("smile.alternatives.")})
print(sys.modules.keys() & {"captioning", "transformers", "trl"})
"""


@pytest.mark.slow
def test_what_is_not_named_is_not_imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    plain, models, objectives, libraries = map(eval, done.stdout.splitlines())
    assert not plain and not models and not libraries
    assert objectives == {"smile.alternatives.focal", "smile.alternatives.interface"}
