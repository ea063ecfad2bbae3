"""Caption photos in the browser, with one or several checkpoints side by side.

    bash scripts/app.sh                                   the demo's checkpoints
    bash scripts/app.sh output/caption_coco other.pth     a run's best checkpoint, and a file
    bash scripts/app.sh hf://spaces/yuezih/BLIP-SMILE/model/blip_smile_base.pth \\
        --config configs/caption_coco.yaml                weights from elsewhere

See docs/app.md.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import importlib.util
import sys

from adapters.program import program_parser
from app.checkpoints import find_demo_checkpoints, load_checkpoints
from app.guard import TOKEN_VARIABLE, read_token
from app.photos import Limits
from app.server import listen, serve
from app.service import CaptionService
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import run_program

MIN_PYTHON = (3, 10)  # Gradio 6 needs it
# {flag: (field of `Limits`, help)}
LIMITS = {
    "max-mb": ("upload_mb", "MB per photo"),
    "max-pixels": ("pixels", "pixels per photo"),
    "max-photos": ("photos", "photos in Batch"),
    "queue": ("queue", "callers who may wait; further ones are refused"),
    "max-batch": ("batch", "photos that a captioner captions at once"),
}


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line. docs/app.md describes the flags."""
    parser = program_parser("bash scripts/app.sh", __doc__)
    add = parser.add_argument
    add("checkpoints", nargs="*", metavar="CHECKPOINT", help="a file, a run's folder, a URL, hf://")
    add("--config", help="a YAML file, for checkpoints without a configuration")
    add("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if any")
    add("--precision", choices=("fp32", "int8"), default="fp32", help="int8: faster on a CPU")
    add("--host", default="127.0.0.1", help="default: only this machine")
    add("--host-name", action="append", help="a further host name in the page's address")
    add(
        "--token",
        help=f"a token that visitors need; better: set {TOKEN_VARIABLE} in the environment",
    )
    add("--port", type=int, default=7860, help="default: 7860; 0: any free port")
    for flag, (field, help_text) in LIMITS.items():
        default = getattr(Limits(), field)
        add(f"--{flag}", type=type(default), default=default, help=help_text)
    return parser


def main(argv=None) -> int:
    """Run the program; return 0, or 2 after a one-line error for the user."""
    parser = command_line()
    arguments = parser.parse_args(argv)
    values = {
        field: getattr(arguments, flag.replace("-", "_")) for flag, (field, _) in LIMITS.items()
    }
    limits = Limits(**values)
    if min(limits) <= 0:
        parser.error(f"--{', --'.join(LIMITS)} have to be above 0")

    def program():
        require_libraries()
        token = read_token(arguments.token)
        sources = arguments.checkpoints or find_demo_checkpoints()
        # The socket is opened before checkpoints are loaded, so that a port in use is reported at
        # once.
        with listen(arguments.host, arguments.port) as server_socket:
            device = distributed.start(arguments.device)
            checkpoints = load_checkpoints(sources, arguments.config, device, arguments.precision)
            names = [arguments.host, *(arguments.host_name or [])]
            serve(CaptionService(checkpoints, limits), server_socket, names, token)

    return run_program(program, interrupted="")


def require_libraries() -> None:
    """Raise UserError if this Python is too old for Gradio, or a library is missing."""
    if sys.version_info < MIN_PYTHON:
        raise UserError(
            "the web page needs Python 3.10 or later, and this is {}.{}: start it with "
            "PYTHON=python3.11 VENV=.venv-app bash scripts/app.sh".format(*sys.version_info)
        )
    for name, library in {"Gradio": "gradio", "prometheus_client": "prometheus_client"}.items():
        if importlib.util.find_spec(library) is None:
            raise UserError(
                f"the page needs {name}: start it with bash scripts/app.sh, which installs it, or "
                "pip install -r requirements-app.txt"
            )


if __name__ == "__main__":
    sys.exit(main())
