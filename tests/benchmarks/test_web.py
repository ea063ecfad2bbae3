"""The benchmark of the page of docs/web.md, in its smallest form."""

import pytest

from benchmarks.web_captioners import find_programs
from captioning.runtime.errors import UserError


@pytest.mark.soak
def test_the_page_is_measured_beside_torch_node_and_the_runner(quick_rows):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    try:
        find_programs()
    except UserError as error:
        pytest.skip(str(error))
    (row,) = quick_rows("web").values()
    contenders = {"torch", "page", "page, no threads", "Node", "runner"}
    assert row["peer"] == "torch" and set(row["contenders"]) == contenders
    assert row["notes"][0].startswith("MB to download: 0.")
