"""Run the GPU checks and benchmarks, one part after the other. See scripts/gpu.sh."""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # its environment variables are inherited by the parts' processes

import contextlib
import os
import signal
import site
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import torch

from adapters.program import program_parser
from benchmarks import REPOSITORY
from captioning.metrics.scoring import library_versions

# Each part is run by `benchmarks.checks` in its own process. A part's time limit is the remaining
# time divided by the number of remaining parts. Slow parts come last, so that they also get the
# time that earlier parts did not use.
PARTS = ("objective", "processes", "loader", "runs", "training", "captioning")
NO_GPU = "there is no CUDA GPU that torch can use; scripts/gpu.sh --rehearse runs on the CPU\n"


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = program_parser("gpu.sh", __doc__)
    add = parser.add_argument
    add("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    add("--wheels", type=Path, help="a folder with wheels of missing packages")
    add("--out", type=Path, default=REPOSITORY / "output" / "gpu")
    add("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    add("--minutes", type=float, default=8.0, help="for all parts together (8)")
    arguments = parser.parse_args(argv)
    deadline = time.monotonic() + arguments.minutes * 60
    if not arguments.rehearse and not torch.cuda.is_available():
        parser.exit(2, NO_GPU)
    out = arguments.out.resolve()
    if arguments.wheels:
        install_missing(arguments.wheels, out / "packages")
    environment = part_environment(out, arguments.rehearse)
    parts = [name for name in PARTS if name in (arguments.only or PARTS)]
    failures = {}
    for index, name in enumerate(parts):
        (out / f"{name}.json").unlink(missing_ok=True)  # from an earlier run
        command = [sys.executable, "-m", "benchmarks.checks", name, "--output", str(out)]
        if arguments.rehearse:
            command.append("--quick")
        time_limit = (deadline - time.monotonic()) / (len(parts) - index)
        failures[name] = run_with_limit(command, environment, time_limit)
    for name, failure in failures.items():
        print(f"{name:12} {failure or 'done'}")
    return int(any(failures.values()))


def install_missing(wheels: Path, folder: Path) -> None:
    """Install the wheels in the folder `wheels` whose packages are missing, into `folder`.

    An installed package is never replaced.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    # Wheels are installed one by one. If they were installed together, an incompatible wheel would
    # prevent the installation of all.
    for wheel in sorted(wheels.glob("*.whl")):
        name = wheel.name.split("-")[0]
        if library_versions(name)[name] is None:
            subprocess.run([*pip, "--target", str(folder), str(wheel)])


def part_environment(out: Path, rehearsal: bool) -> dict[str, str]:
    """Return the environment variables of a part. Nothing is downloaded, and caches are in `out`.

    rehearsal: whether the parts run on the CPU.
    """
    caches = ("HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    python_path = [
        str(REPOSITORY),
        *filter(None, [os.environ.get("PYTHONPATH")]),
        str(out / "packages"),
    ]
    cpu_settings = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    cpu_settings["TORCHDYNAMO_DISABLE"] = "1"  # compilation would take longer than everything else
    return {
        **os.environ,
        **dict.fromkeys(caches, str(out / "cache")),
        "PYTHONUSERBASE": site.getuserbase(),  # otherwise it would be in the changed HOME
        "PYTHONPATH": os.pathsep.join(python_path),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        **(cpu_settings if rehearsal else {}),
    }


def run_with_limit(
    command: Sequence[str], environment: Mapping[str, str], time_limit: float
) -> str:
    """Run a command. Return why it failed; "" if it succeeded.

    time_limit: in seconds. At the end, the command's process group is killed, so that no process
    that the command has started is left.
    """
    if time_limit <= 0:
        return "had no time left"
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, start_new_session=True)
    try:
        status = process.wait(time_limit)
    except subprocess.TimeoutExpired:
        return f"ended after {time_limit:.0f} s, its time limit"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if status < 0:
        return f"failed with {signal.Signals(-status).name}"
    return f"failed with {status}" if status else ""


if __name__ == "__main__":
    sys.exit(main())
