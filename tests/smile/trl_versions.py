"""Tests of SmileLossMixin and use_smile with releases of TRL, each in its own environment:

python -m tests.smile.trl_versions FOLDER [VERSION ...]

Needs uv. The environments are made in FOLDER, with the libraries of the day of the release and the
torch and pytest that are installed here, and stay there. Ends with 1 if a release trains another
loss than the definition, or does not say in one line what to type.
"""

import os
import site
import subprocess
import sys
from pathlib import Path

# The day after each release: later libraries are left out, since TRL names no highest version.
RELEASES = {
    "0.29.1": "2026-03-21",
    "1.0.0": "2026-03-31",
    "1.5.1": "2026-05-28",
    "1.10.0": "2026-08-14",
    "1.14.2": "2026-10-07",
    "1.16.0": "2026-10-16",
}
TESTS = (
    *("tests/smile/test_hf_trainers.py", "tests/smile/test_hf_trainers_around.py", "-k"),
    "(step_of_sft and padded) or completions or each_turn or metrics or in_trls_own_sft_trainer",
)


def environment(folder: Path, version: str) -> str:
    """Return the Python of an environment with this TRL, which is made if it is missing."""
    python = folder / version / "bin" / "python"
    if not python.exists():
        subprocess.run(["uv", "venv", "-q", "-p", sys.executable, folder / version], check=True)
        (there,) = (folder / version / "lib").glob("*/site-packages")
        (there / "installed_here.pth").write_text(site.getsitepackages()[0])  # looked in last
    overrides = folder / "without_torch.txt"
    overrides.write_text("torch; sys_platform == 'never'\n")
    needed = [f"trl=={version}", "peft", "--override", overrides]
    latest = ["--exclude-newer", RELEASES[version]]
    subprocess.run(["uv", "pip", "install", "-q", "-p", python, *latest, *needed], check=True)
    return str(python)


def main(folder: str, *versions: str) -> int:
    wrong = 0
    for version in versions or RELEASES:
        python = environment(Path(folder).absolute(), version)
        command = [python, "-W", "ignore", "-m", "pytest", "--noconftest", *TESTS]
        print(f"TRL {version}", flush=True)
        wrong += subprocess.run(command, env={**os.environ, "PYTHONPATH": os.getcwd()}).returncode
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
