"""Break each promise of docs/reliability.md in a copy of the code; a test has to fail.

python -m tests.soak.mutations [words of a title, to try only those]
"""

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from captioning.runtime.jobs import cores

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


def verdict(folder: Path, mutation: Mutation) -> str:
    """Return which test fails in the copy with the mutation, if any."""
    path, command = folder / mutation.path, [sys.executable, "-m", "pytest", "-x", "-q", "-rf"]
    whole = path.read_text()
    path.write_text(whole.replace(mutation.old, mutation.new))
    command += ["-p", "no:cacheprovider", "--tb=no", *mutation.tests.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    path.write_text(whole)
    failed = re.search(r"^FAILED .*?::(\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:
        return f"caught by {failed[1]}"
    return f"SURVIVED (pytest's code {done.returncode})"


def survivors(mutations: list[Mutation]) -> int:
    """Try mutations in a copy of their own; print what each does, and return how many survive."""
    survived = 0
    with tempfile.TemporaryDirectory(prefix="smile-mutations.") as name:
        copy_of_the_code(Path(name))
        for mutation in mutations:
            found = verdict(Path(name), mutation)
            survived += found.startswith("SURVIVED")
            print(f"{mutation.title}: {found}", flush=True)
    return survived


def main(words: list[str]) -> int:
    chosen = [m for m in read_mutations() if all(word in m.title for word in words)]
    parts = [chosen[first :: cores()] for first in range(min(cores(), len(chosen)))]
    with ThreadPoolExecutor() as pool:
        survived = sum(pool.map(survivors, parts))
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
