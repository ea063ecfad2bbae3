"""examples/caption.ipynb: every cell runs, in order."""

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebook's test needs requirements-dev.txt")
nbclient = pytest.importorskip("nbclient", reason="the notebook's test needs requirements-dev.txt")
pytest.importorskip("ipykernel", reason="the notebook's test needs requirements-dev.txt")


@pytest.fixture(scope="module")
def notebook(repository):
    return nbformat.read(repository / "examples" / "caption.ipynb", as_version=4)


def test_it_is_stored_without_outputs_and_without_places_of_a_machine(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
        assert "/home" not in cell.source and "/tmp" not in cell.source
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(notebook, repository, tmp_path):
    (given,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    given.source = (
        'SCENES = {"train": 32, "val": 4, "test": 6}\n'
        'EPOCHS = {"pretrain": 1, "finetune": 1}\n'
        f"FOLDER = {str(tmp_path)!r}"
    )
    here = {"metadata": {"path": str(repository / "examples")}}
    nbclient.NotebookClient(notebook, timeout=120, resources=here).execute()
    printed = [
        "".join(output.get("text", "") for output in cell.outputs if output.name == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code" and all("name" in output for output in cell.outputs)
    ]
    costs, captions, scored = printed[-3:]
    rows = [line.split() for line in costs.splitlines()[2:]]
    assert rows[-1][0] == "(end)" and len(rows) > 3
    for _, mle, smile, _, other_mle, other_smile, _ in rows:
        assert float(smile) <= float(mle) and float(other_smile) <= float(other_mle)
    assert [line.split()[0] for line in captions.splitlines()] == ["MLE", "SMILE"]
    assert all(name in scored for name in ("MLE", "SMILE", "Cap. Len.", "difference"))
    shown = [o.data for c in notebook.cells for o in c.get("outputs", []) if "data" in o]
    assert sum("image/png" in data for data in shown) == 1
