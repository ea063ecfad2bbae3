"""Check and measure on a GPU, one part after the other. Start it with scripts/gpu.sh; see there."""

import argparse
import contextlib
import json
import os
import shlex
import signal
import site
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from benchmarks.gpu.packages import REPOSITORY, install, is_installed, required
from benchmarks.gpu.part import CHECK, NO_GPU, PARTS
from captioning.files.writing import write_json

NOTHING_DONE = 2  # exit status
START_S = 5.0  # start-up time of a part; with less time left, the part is not started
LONGEST_SOCKET = 60  # characters of TMPDIR, since paths of sockets are limited to 108 bytes
SAME = ("gpu", "driver", "torch")  # what results of an earlier run must have in common with this
INTERRUPTED = "interrupted"


def parse(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu.sh", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of missing packages")
    parser.add_argument("--out", type=Path, help="the folder to write to (output/gpu)")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together (8)")
    arguments = parser.parse_args(argv)
    if arguments.wheels and not arguments.wheels.is_dir():
        parser.error(f"--wheels: {arguments.wheels} is not a folder")
    arguments.out = (arguments.out or REPOSITORY / "output" / "gpu").resolve()
    return arguments


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = parse(argv)
    ends = time.monotonic() + arguments.minutes * 60
    folder = arguments.out / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    refused = []
    if arguments.wheels:
        refused = install(arguments.wheels, arguments.out / "packages")
    absent = {name: module for name, module in required().items() if not is_installed(module)}
    for name, module in absent.items():
        without = [part for part in PARTS if module in (*PARTS[part].needs, "torch")]
        print(f"missing: {name}, needed by {', '.join(without) or 'no part'}", flush=True)
    for problem in refused:
        print(f"not installed: {problem}", flush=True)
    # "ceilings" always runs: other measurements are compared with the speed of the GPU.
    chosen = [name for name in PARTS if name in ("ceilings", *(arguments.only or PARTS))]
    environment = variables(arguments.out, arguments.rehearse)
    for number, name in enumerate(chosen):
        path, log = folder / f"{name}.json", folder / f"{name}.log"
        path.unlink(missing_ok=True)  # from an earlier run
        log.write_text("")
        start = time.monotonic()
        limit = (ends - start) * PARTS[name].share / sum(PARTS[p].share for p in chosen[number:])
        lacking = [package for package, module in absent.items() if module in PARTS[name].needs]
        if lacking:
            ended = f"needs {', '.join(lacking)}"
        elif limit < START_S:
            ended = "there was no time left"
        else:
            command = [sys.executable, "-m", "benchmarks.gpu.part", name, "--output", str(folder)]
            try:
                ended = run([*command, *["--quick"] * arguments.rehearse], environment, log, limit)
            except KeyboardInterrupt:
                ended = INTERRUPTED
        content = json.loads(path.read_text()) if path.exists() else {"planned": [], "rows": []}
        content.update(ended=ended, lacking=bool(lacking), seconds=time.monotonic() - start)
        write_json(content, path)
        print(f"== {name}: {ended or 'done'}\n{log.read_text(errors='replace')}", flush=True)
        if NO_GPU in ended:
            return NOTHING_DONE
        if ended == INTERRUPTED:
            break
    content = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["bash", "scripts/gpu.sh", *(argv or sys.argv[1:])]),
        "rehearsal": arguments.rehearse,
        "missing": list(absent),
        "wheels_refused": refused,
        "parts": parts_in(folder),
    }
    write_json(content, arguments.out / "gpu.json")
    status = show(content["parts"])
    print(arguments.out / "gpu.json")
    return status


def variables(out: Path, rehearsal: bool) -> dict[str, str]:
    """The environment of a part: no network; caches and temporary files are in `out`."""
    cache = out / "home" / ".cache"
    places = {
        **{"HOME": out / "home", "XDG_CACHE_HOME": cache, "HF_HOME": cache / "huggingface"},
        **{"TORCH_HOME": cache / "torch", "TRITON_CACHE_DIR": cache / "triton"},
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
    }
    if len(str(out)) < LONGEST_SOCKET:
        places["TMPDIR"] = out / "tmp"
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    path = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")]), str(out / "packages")]
    return {
        **os.environ,
        **{name: str(place) for name, place in places.items()},
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if rehearsal else {}),
    }


def run(command: Sequence[str], environment: dict[str, str], log: Path, limit: float) -> str:
    """Run a process; return how it ended, "" for exit status 0. Kills its children, too."""
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"ended after {limit:.0f} s, its time limit"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status == 0:
        return ""
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    last = next((line for line in reversed(lines) if line), "no output")
    return f"failed with {name}: {last[:300]}"


def parts_in(folder: Path) -> dict[str, Any]:
    """The results of parts: of this run, and of earlier runs with the same GPU, driver and PyTorch.

    An earlier result is used only for a part that this run did not begin.
    """
    found = {name: folder / f"{name}.json" for name in PARTS}
    parts = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    newest = max(parts.values(), key=lambda part: part.get("time", ""))  # this run's, if any began
    here = newest.get("machine", {})
    unended = {"ended": INTERRUPTED, "lacking": False, "seconds": 0.0}  # if the program was killed
    return {
        name: {**unended, **part}
        for name, part in parts.items()
        if all(part.get("machine", here).get(key) == here.get(key) for key in SAME)
    }


def show(parts: dict[str, Any]) -> int:
    """Print a table; return 1 if something failed or a check was not done."""
    bad = 0
    for name, part in parts.items():
        checks = [row for row in part["rows"] if row["name"].startswith(CHECK)]
        failed = sum("error" in row for row in part["rows"])
        missed = part["planned"][len(part["rows"]) :]
        out_of_time = part["ended"].startswith("ended after") and part["rows"]
        unchecked = any(row.startswith(CHECK) for row in missed)
        broken = part["ended"] and not part["lacking"] and not out_of_time
        bad += bool(failed or unchecked or broken)
        print(
            f"{name:12} {part['seconds']:6.0f} s  {len(checks):3} checks "
            f"{len(part['rows']) - len(checks):3} rows  {failed} failed  {len(missed)} not done  "
            f"{part['ended']}"
        )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
