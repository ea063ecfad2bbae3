"""Programs one after the other in one process, which imports once."""

import json
import os
import subprocess
import sys

_RUN = """
import importlib, json, sys
for name, arguments, code in json.loads(sys.argv[1]):
    print("==", name, file=sys.stderr)
    found = importlib.import_module(name).main(arguments)
    assert found == code, (name, arguments, found)
"""


def run_programs(programs, folder, repository, before=""):
    """Run them and return their stdout and stderr; each has to end with its code.

    programs: (module, arguments, exit code) each; folder: where they run, and all of their PATH;
    before: Python that runs first.
    """
    done = subprocess.run(
        [sys.executable, "-c", before + _RUN, json.dumps(programs)],
        env={**os.environ, "PYTHONPATH": str(repository), "PATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def captioned_everywhere(folder):
    """The caption of a photo and its words and the run's name on the page, `page.json`.

    The test split's, in `run/`, and the bulk captions, `captions.jsonl`, have to agree with it.
    """
    split = json.loads((folder / "run/result/test.json").read_text())
    lines = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    bulk = {os.path.basename(line["image"]): line["caption"] for line in lines}
    page = json.loads((folder / "page.json").read_text())
    assert len(split) == 7
    for entry in split:
        assert bulk[f"scene_{entry['image_id']:06d}.png"] == entry["caption"]
    assert page["caption"] == bulk[page["image"]]
    return page["caption"], page["words"], page["label"], split
