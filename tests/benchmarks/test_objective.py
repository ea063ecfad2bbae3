"""The objective's benchmark in its smallest form: equal results, and what is written."""

import json
import shutil

import pytest
import torch

from benchmarks.cross_entropies import libraries
from benchmarks.objective import MAIN, OBJECTIVES, OURS, TINY, Problem, main, step
from smile import Objective


@pytest.mark.parametrize("name", OBJECTIVES)
def test_contenders_do_the_same_work(name):
    problem, objective = Problem(TINY), Objective(OBJECTIVES[name])
    ours, naive = (
        [x.clone() for x in problem.work(contender, objective, autocast=False)()]
        for contender in ("from hidden states", "naive")
    )
    assert len(ours) == 4 and ours[2].shape == (TINY.V, TINY.D)
    torch.testing.assert_close(ours, naive)


@pytest.mark.parametrize("name", libraries())
def test_other_libraries_do_the_work_of_our_mle(name):
    if name.startswith("cut-cross-entropy") and shutil.which("c++") is None:
        pytest.skip("cut-cross-entropy is compiled, and there is no C++ compiler")
    theirs = [x.clone() for x in step(name, TINY)()]
    torch.testing.assert_close(theirs, [x.clone() for x in step("our MLE", TINY)()])


@pytest.mark.slow
def test_quick_rows(forked, tmp_path):
    main(["--quick", "--output", str(tmp_path)])
    content = json.loads((tmp_path / "objective.json").read_text())
    rows = {entry["name"]: entry for entry in content["rows"]}
    beside = rows.pop("beside other libraries")
    assert set(beside["contenders"]) == {*OURS, *libraries()} and beside["peer"] in libraries()
    assert content["quick"] and set(MAIN) == set(rows)
    for entry in rows.values():
        assert {"from hidden states", "naive", entry["peer"]} == set(entry["contenders"])
        assert entry["sizes"] == TINY._asdict()
        for values in entry["contenders"].values():
            assert len(values["times"]) == 1 and values["median"] > 0
            assert {"ratio", "spread", "peak_bytes", "memory_ratio"} < set(values)
    assert [rows[name]["peer"] for name in MAIN] == ["naive", "cross-entropy"]
