"""Programs called in this process, and what is asserted of their errors and of folders."""

import contextlib
import gc
import importlib
import io
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch

from captioning.runtime.signals import SIGNALS


class Outcome(NamedTuple):
    """Exit code, stdout and stderr of a program."""

    code: int
    out: str
    err: str


def run_program(name: str, *arguments: object) -> Outcome:
    """Call `main` of a program, such as "captioning.train", with command-line arguments.

    A package's program is its `__main__`. Exceptions other than SystemExit pass through. Afterwards
    the process has the environment, folder, signal handlers and threads that it had before.
    """
    words = [str(argument) for argument in arguments]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    module = importlib.import_module(name)
    if not hasattr(module, "main"):
        module = importlib.import_module(f"{name}.__main__")
    restored = _process_restored([name, *words])
    with restored, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = module.main(words)
        except SystemExit as ended:
            code = ended.code
    return Outcome(code or 0, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@contextlib.contextmanager
def _process_restored(argv: list[str]) -> Iterator[None]:
    """Restore after the block what a program may change for its whole process."""
    folder, threads, collected = os.getcwd(), torch.get_num_threads(), gc.isenabled()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    root = logging.getLogger()
    level, root_handlers = root.level, root.handlers[:]
    root.handlers.clear()  # pytest's, with which a program's own would not be installed
    variables, words = mock.patch.dict(os.environ), mock.patch.object(sys, "argv", argv)
    try:
        with variables, words, warnings.catch_warnings():
            yield
    finally:
        os.chdir(folder)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_num_threads(threads)
        (gc.enable if collected else gc.disable)()
        root.setLevel(level)
        root.handlers[:] = root_handlers


def one_error_line(said, part: str) -> str:
    """Assert that exactly one line is an error, that it has `part`, and return it.

    said: what was printed, or pytest's capsys, of which stderr is read. No traceback may be there.
    """
    text = said if isinstance(said, str) else said.readouterr().err
    assert "Traceback" not in text, text
    errors = [line for line in text.splitlines() if "error: " in line]
    assert len(errors) == 1 and part in errors[0], text
    return errors[0]


def refused(name: str, *arguments: object, part: str = "") -> str:
    """Assert that a program ends with exit code 2 and one error line with `part`, and return it."""
    code, _, err = run_program(name, *arguments)
    assert code == 2, err
    return one_error_line(err, part)


@contextlib.contextmanager
def raises_line(error_type: type[Exception], *parts: str, start: str = "") -> Iterator:
    """Assert that the block raises an error of one line, with the parts; pytest's info is given."""
    with pytest.raises(error_type) as error:
        yield error
    line = str(error.value)
    assert "\n" not in line and line.startswith(start) and all(part in line for part in parts), line


@contextlib.contextmanager
def unchanged(*folders: Path) -> Iterator[None]:
    """Assert that the block neither adds, removes nor changes a file in the folders."""

    def content():
        paths = [path for folder in folders for path in folder.rglob("*")]
        return {path: hash(path.read_bytes()) if path.is_file() else None for path in paths}

    before = content()
    yield
    assert content() == before


def page_record(run: Path, **settings) -> dict:
    """Return the page's answer to the first photo of a run's data set."""
    from app.captions import CaptionService  # imported late: few tests need it
    from app.checkpoints import load_checkpoints
    from app.options import default_settings

    (checkpoint,) = load_checkpoints([str(run)], None, torch.device("cpu"))
    photo = min(Path(checkpoint.config.image_root, "images").iterdir())
    call = (str(photo), {**default_settings(checkpoint.config), **settings})
    answer = CaptionService([checkpoint]).answer([call])[0].record()
    return answer[0] if isinstance(answer, list) else answer


def in_every_program(folder: Path, config: str, photos: Path, *refused: str) -> tuple[str, dict]:
    """Train a captioner without attention maps, and give it to every program.

    - config: the text of a configuration, whose test split are photos in `photos`
    - refused: changes of the configuration with which the run does not resume

    Returns what the programs printed, and `page_record`. The captions of the test split, of bulk
    captioning and of the page agree.
    """
    run, report = folder / "run", folder / "report.html"
    (folder / "run.yaml").write_text(config)
    train = ["train", "--config", folder / "run.yaml", "--output_dir", run, "checkpoint_every=2"]
    best, out = ("--checkpoint", run / "checkpoint_best.pth"), folder / "captions.jsonl"
    said = ""
    for (name, *arguments), code in [
        ([*train, "max_epoch=1"], 0),
        ([*train, "max_epoch=2"], 0),
        *(([*train, "max_epoch=2", change], 2) for change in refused),
        ([*train, "max_epoch=2", "--evaluate", "--eval_split=test"], 0),
        (["caption", run, photos, "--out", out, "eval_batch_size=3"], 0),
        (["calibrate", *best], 0),
        (["report", run, "--output", report], 0),
        (["attend", *best, min(photos.iterdir())], 2),
    ]:
        outcome = run_program(f"captioning.{name}", *arguments)
        assert outcome.code == code, (name, outcome.err)
        said += outcome.out + outcome.err
    assert f"resuming from {run / 'checkpoint_00.pth'}" in said
    assert "negative log-likelihood" in said and "gives no attention maps" in said
    split, page = json.loads((run / "result/test.json").read_text()), page_record(run)
    lines = map(json.loads, out.read_text().splitlines())
    bulk = {os.path.basename(line["image"]): line["caption"] for line in lines}
    assert len(split) == 7 and all(entry["caption"] for entry in split)
    for entry in split:
        assert bulk[f"scene_{entry['image_id']:06d}.png"] == entry["caption"]
    assert page["caption"] == bulk[page["image"]] and page["label"] in report.read_text()
    words = [word["word"] for word in page["words"] if word["word"] not in ("(end)", "<END>")]
    assert " ".join(words).split() == page["caption"].split()
    return said, page
