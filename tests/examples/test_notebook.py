"""examples/caption.ipynb: every cell runs, in order."""

import contextlib
import io
import json
import sys

from matplotlib import pyplot as plt

PARAMETERS = """
SCENES = {{"train": 32, "val": 2, "test": 4}}
EPOCHS = {{"pretrain": 1, "finetune": 1}}
FOLDER = {folder!r}
"""


def test_its_cells_compare_mle_with_smile_word_by_word(repository, tmp_path, monkeypatch):
    """The file has no outputs and no places of a machine."""
    notebook = json.loads((repository / "examples" / "caption.ipynb").read_text())
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    monkeypatch.chdir(repository / "examples")  # from where it finds the repository
    monkeypatch.setattr(sys, "path", [*sys.path])
    plt.close("all")
    names, printed = {"__name__": "__main__"}, []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        assert "/home" not in source and "/tmp" not in source
        if "parameters" in cell["metadata"].get("tags", ()):
            source = PARAMETERS.format(folder=str(tmp_path))
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, "<cell>", "exec"), names)
            printed.append(out.getvalue())
    costs, captions, scored = printed[-3:]
    rows = [line.split() for line in costs.splitlines()[2:]]
    assert rows[-1][0] == "(end)" and len(rows) > 3
    for _, mle, smile, _, other_mle, other_smile, _ in rows:
        assert float(smile) <= float(mle) and float(other_smile) <= float(other_mle)
    assert [line.split()[0] for line in captions.splitlines()] == ["MLE", "SMILE"]
    assert all(name in scored for name in ("MLE", "SMILE", "Cap. Len.", "difference"))
    (figure,) = plt.get_fignums()
    assert all(axis.images for axis in plt.figure(figure).axes)
    plt.close("all")
