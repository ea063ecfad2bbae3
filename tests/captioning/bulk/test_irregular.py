"""Pipes, sockets and devices are failed images, and do not block."""

import os
import socket

import pytest

from captioning.bulk.reading import transformed
from captioning.runtime.errors import UserError
from tests.captioning.bulk.conftest import read_lines


@pytest.fixture
def odd(photos):
    """Add a pipe, a socket, devices and a link to a photo; return the names of the bad ones."""
    os.mkfifo(photos / "a_pipe.jpg")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(photos)  # a socket's path is short
        bound.bind("socket.jpg")
        os.chdir(here)
        (photos / "zeros.jpg").symlink_to("/dev/zero")
        (photos / "null.jpg").symlink_to("/dev/null")
        (photos / "link.png").symlink_to(min(photos.glob("*.png")))
        yield {"a_pipe.jpg", "socket.jpg", "zeros.jpg", "null.jpg"}


def test_irregular_files_are_failed_images(call, photos, odd, tmp_path):
    flags = ["--num_workers", "2", "--sidecar", "--write-shards", str(tmp_path / "tars")]
    code, log = call(*flags)
    assert code == 0 and "done 11 (" in log and "failed 4" in log
    failed = {
        os.path.basename(f["image"]): f["error"] for f in read_lines(tmp_path / "out/failed.jsonl")
    }
    assert failed.keys() == odd
    for name, error in failed.items():
        assert error.startswith(f"{photos / name}: not a readable image (not a regular file)")
    assert (photos / "link.txt").read_text()  # the link is a photo
    names = {os.path.splitext(path.name)[0] for path in photos.glob("*.txt")}
    assert not names & {os.path.splitext(name)[0] for name in odd}


def test_a_pipe_among_the_outputs_is_refused(call, photos, tmp_path):
    beside = min(photos.glob("*.png")).with_suffix(".txt")
    os.mkfifo(beside)
    code, log = call("--sidecar")
    assert code == 2 and log.splitlines() == [
        f"error: {beside} is not a regular file: remove it, or choose another --sidecar"
    ]
    for name in ("captions.jsonl", "failed.jsonl", "captions.jsonl.done"):
        os.mkfifo(tmp_path / "out" / name)
        code, log = call()
        assert code == 2 and "it has to be a file that ends in .jsonl" in log
        (tmp_path / "out" / name).unlink()


def test_a_photo_that_a_captioner_refuses_is_named(photos):
    def refuse(image, prompt):
        raise ValueError(f"{prompt}: shorten the prompt")

    path = min(photos.glob("*.png"))
    with pytest.raises(UserError, match=f"^{path}: long: shorten the prompt"):
        transformed(refuse, str(path), None, "long", takes_prompt=True)
