"""Break each promise of docs/reliability.md in a copy of the code; a test has to fail.

python -m tests.soak.mutations [words of a title, to try only those]
"""

import ast
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
# "title: file, tests that must fail", then the lines that are replaced (-) and the new ones (+).
PROMISES = Path(__file__).with_name("broken_promises.txt")


class Mutation(NamedTuple):
    """Code that is replaced, once in a file, and the tests (pytest's arguments) that must fail."""

    title: str
    path: str
    tests: str
    old: str
    new: str


def read_mutations() -> list[Mutation]:
    found = []
    for block in re.findall(r"^[^-+\n].*(?:\n[-+].*)+", PROMISES.read_text(), re.MULTILINE):
        head, *lines = block.splitlines()
        title, path, tests = re.fullmatch("(.+): (.+?), (.+)", head).groups()
        # Without the last line's end, so that its comment may change.
        old, new = ("\n".join(line[1:] for line in lines if line[0] == s) for s in "-+")
        found.append(Mutation(title, path, tests, old, new))
    return found


def copy_of_the_code(folder: Path) -> None:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=REPOSITORY, text=True).splitlines():
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, folder / name)


@contextlib.contextmanager
def broken(folder: Path, mutation: Mutation):
    """The copy with the mutation, for the block."""
    path = folder / mutation.path
    whole = path.read_text()
    if whole.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.title}: {mutation.path} has not once {mutation.old!r}")
    ast.parse(text := whole.replace(mutation.old, mutation.new))  # it has to be valid code
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(whole)


def failed_tests(folder: Path, mutation: Mutation) -> tuple[int, list[str]]:
    """pytest's exit code, and the names of what failed, in a process that is a fork of this one."""
    output = folder / "output"
    child = os.fork()
    if child == 0:
        code = 70
        try:
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            code = _run_tests(folder, mutation.tests)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    lines = output.read_text(errors="replace").splitlines()
    names = [line.split(" - ")[0].split("::", 1)[1] for line in lines if line.startswith("FAILED")]
    return os.waitstatus_to_exitcode(status), names


def _run_tests(folder: Path, tests: str) -> int:
    os.chdir(folder)
    sys.path[:] = [str(folder), *(p for p in sys.path if p not in ("", str(REPOSITORY)))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    import pytest

    return pytest.main(["-x", "-q", "-rf", "-p", "no:cacheprovider", "--tb=no", *tests.split()])


def main(words: list[str]) -> int:
    # Imported once, before the forks; the project itself is imported after them.
    import pytest  # noqa: F401
    import timm  # noqa: F401
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    chosen = [m for m in read_mutations() if all(word in m.title for word in words)]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="smile-mutations.") as name:
        copy_of_the_code(Path(name))
        for mutation in chosen:
            with broken(Path(name), mutation):
                code, failed = failed_tests(Path(name), mutation)
            caught = code == 1 and failed
            survived += not caught
            verdict = f"caught by {failed[0]}" if caught else f"SURVIVED (pytest's code {code})"
            print(f"{mutation.title}: {verdict}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
