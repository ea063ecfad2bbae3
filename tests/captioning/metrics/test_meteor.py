"""METEOR is that of pycocoevalcap; one Java can score for several; one that fails is one line."""

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from captioning.data.caption_files import read_references
from captioning.metrics import meteor
from captioning.metrics.java import JavaError, java_process, java_version
from captioning.metrics.meteor import meteor_of_sums, meteor_scores
from tests.captioning.conftest import is_running

CAPTIONS = ["a man rides a horse", "", "two cats sit on a red sofa", "a | | | dog", "zebra"]
REFERENCES = [
    ["a man on a horse", "man riding"],
    ["something is here"],
    ["cats sitting on the couch", "", "a pair of cats"],
    ["a dog"],
    ["a train at a station"],
]


def scores():
    return meteor_scores(CAPTIONS, REFERENCES)


@pytest.fixture(scope="module")
def alone(java):
    """The scores by an unshared Java process, which takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(meteor.ADDRESS, raising=False)
        return scores()


def test_scores_are_those_of_pycocoevalcap(alone):
    [total], [each] = alone.metrics.values(), alone.per_caption.values()
    # Recorded from Meteor().compute_score of pycocoevalcap 1.2.
    assert total.value == pytest.approx(0.2297044399120868) and total.n == 5
    assert total.low < total.value < total.high
    assert each == pytest.approx([0.4108986339976993, 0, 0.3376630369468163, 0.2990654205607477, 0])


def test_the_formula_scores_statistics_as_java_does(java, shared_data):
    folder = shared_data / "coco-caption"
    results = json.loads((folder / "captions_val2014_fakecap_results.json").read_text())[:200]
    references = read_references(folder / "captions_val2014_fakecap_subset1000.json")
    captions = [result["caption"].lower() for result in results]
    groups = [[text.lower() for text in references[r["image_id"]]] for r in results]
    # Captions that equal a reference, of one word and of several, one in two chunks, and some
    # twice, as in a resample.
    captions += ["zebra", "a dog on a sofa", "a dog on a sofa", "", *CAPTIONS, *captions[:50]]
    groups += [["zebra"], ["a dog on a sofa"], ["a sofa on a dog"], [""], *REFERENCES, *groups[:50]]
    total, each, statistics = meteor._run_meteor(captions, groups)
    assert meteor_of_sums(statistics) == pytest.approx(each, abs=1e-12)
    assert meteor_of_sums(statistics.sum(0, keepdims=True)) == pytest.approx([total], abs=1e-12)
    assert each[200:202] == [1.0, 1.0] and 0 < each[202] < 1 and np.shape(statistics) == (259, 23)


def test_failing_java_is_reported(fake_java):
    fake_java(
        "read line; echo 1; echo 'Picked up JAVA_TOOL_OPTIONS' >&2; "
        "echo 'Exception in thread main: heap space' >&2; echo '    at Meteor.main' >&2; exit 3"
    )
    with pytest.raises(JavaError, match=r"exit code 3: Exception in thread main: heap space$"):
        scores()
    fake_java("cat")
    with pytest.raises(JavaError, match=r"is invalid: .*SCORE"):
        scores()


def test_a_shared_process_scores_for_forks_and_is_replaced(alone, own_meteor, monkeypatch):
    start, processes = meteor._start_meteor, []

    @contextmanager
    def shared_alone(seconds):
        if seconds != meteor._SHARED_SECONDS:
            raise JavaError("its own")
        with start(seconds) as found:
            processes.append(found[0])
            yield found

    monkeypatch.setattr(meteor, "_start_meteor", shared_alone)
    with meteor.shared_process(start=True):
        assert len(processes) == 1  # before the first request
        assert scores() == alone
        child = os.fork()
        if child == 0:
            os._exit(7 if scores() == alone else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(processes) == 1
        processes[0].kill()
        processes[0].wait()
        assert scores() == alone and len(processes) == 2
    assert processes[1].poll() is not None and meteor.ADDRESS not in os.environ
    with pytest.raises(JavaError, match="its own"):
        scores()


def test_versions_of_java_and_one_that_cannot_run(fake_java):
    for printed, version in (('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0"', 8)):
        fake_java(f"echo '{printed}' >&2")
        assert java_version() == version
    fake_java("echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(JavaError, match="exit code 1: Unable to locate a Java Runtime"):
        java_version()
    Path(os.environ["PATH"].split(os.pathsep)[0], "java").write_bytes(b"\0\1\2")
    with pytest.raises(JavaError, match="cannot be started"):
        java_version()


def test_java_is_killed_with_what_it_started(fake_java, tmp_path):
    # The script's own child holds the pipes, which must not be waited for either.
    fake_java(f"sleep 60 & echo $! > {tmp_path}/child; wait")
    raises = pytest.raises(JavaError, match=r"no result within 2 s")
    with raises, java_process([], time_limit=2) as (process, _):
        process.communicate("question")
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 30
    while is_running(child):
        assert time.monotonic() < until

    fake_java("exec sleep 60")  # a bug in the block is not hidden, and leaves no Java
    with pytest.raises(ZeroDivisionError), java_process([], time_limit=60) as (process, _):
        1 / 0  # noqa: B018
    assert process.poll() is not None
