"""Caption photos in the browser, with one or several checkpoints side by side.

    bash scripts/app.sh                                   the demo's checkpoints
    bash scripts/app.sh output/caption_coco other.pth     a run's best checkpoint, and a file
    bash scripts/app.sh hf://spaces/yuezih/BLIP-SMILE/model/blip_smile_base.pth \\
        --config configs/caption_coco.yaml                weights from elsewhere

Programs use Gradio's API, see docs/app.md.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import os
import sys

from app.captions import MAX_PIXELS, CaptionService
from app.checkpoints import find_demo_checkpoints, load_checkpoints
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import add_model_flags, positive, program_parser, run_program

TOKEN_VARIABLE = "APP_TOKEN"  # an environment variable; `ps` shows flags, but not variables
# {flag: (default, help)}, so that one visitor cannot occupy the whole machine
LIMITS = {
    "max-mb": (20, "MB per photo"),
    "max-pixels": (MAX_PIXELS, "pixels per photo"),
    "max-photos": (100, "photos in Batch"),
    "queue": (20, "callers who may wait; further ones are refused"),
}


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line. docs/app.md describes the flags."""
    parser = program_parser("bash scripts/app.sh", __doc__)
    add, token = parser.add_argument, os.environ.get(TOKEN_VARIABLE) or None
    add("checkpoints", nargs="*", metavar="CHECKPOINT", help="a file, a run's folder, a URL, hf://")
    add_model_flags(parser)
    add("--precision", choices=("fp32", "int8"), default="fp32", help="int8: faster on a CPU")
    add("--host", default="127.0.0.1", help="default: only this machine")
    add("--host-name", action="append", default=[], help="a further name or address of the page")
    add("--port", type=int, default=7860, help="default: 7860; 0: any free port")
    add("--root-path", default="", help="the path under which a proxy serves the page")
    add("--token", default=token, help=f"visitors' password; better: set {TOKEN_VARIABLE}")
    for name, (default, text) in LIMITS.items():
        add(f"--{name}", type=positive, default=default, help=text)
    return parser


def main(argv=None) -> int:
    """Run the program; return 0, or 2 after a one-line error for the user."""
    arguments = command_line().parse_args(argv)

    def program():
        try:
            from app.server import listen, serve
        except ModuleNotFoundError as error:
            raise UserError(
                f"{error}: the page needs Gradio, which needs Python 3.10 or later: start it with "
                "bash scripts/app.sh, or pip install -e .[app]"
            ) from None
        sources = arguments.checkpoints or find_demo_checkpoints()
        # The socket is opened before checkpoints are loaded, so that a port in use is reported at
        # once.
        with listen(arguments.host, arguments.port) as server_socket:
            device = distributed.start(arguments.device)
            checkpoints = load_checkpoints(sources, arguments.config, device, arguments.precision)
            serve(CaptionService(checkpoints, arguments.max_pixels), server_socket, arguments)

    return run_program(program, interrupted="stopped")


if __name__ == "__main__":
    sys.exit(main())
