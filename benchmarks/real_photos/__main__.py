"""Train MLE, SMILE and mixtures on real photographs, over several seeds, and compare them.

python -m benchmarks.real_photos
python -m benchmarks.real_photos --seeds 2 --objectives mle,smile,focal --jobs 1
python -m benchmarks.real_photos --mle 0,0.5,1 --objectives mixce --decodings all

For each seed, a captioner is trained with MLE on two thirds of the training photos, and then
fine-tuned with each objective by `captioning.sweep`. A judge, another captioner, is trained on the
last third and the validation photos. The captions of the test photos are scored; in addition, the
judge tries to find each caption's photo. Finished runs are not repeated, and stopped runs are
resumed. The folder gets results.json, table.md, plane.svg, report.html, and a folder for each run;
with --decodings, which generates captions by other decodings, too, also decodings.md.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from benchmarks.real_photos.parts import JUDGE, START, write_few, write_parts
from benchmarks.real_photos.summary import write_decoding_summary, write_summary
from captioning import train
from captioning.config import Config, keys_of, load_config
from captioning.models.checkpoints import BEST
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job
from captioning.runtime.program import exit_code
from captioning.sweep.__main__ import Sweep
from captioning.sweep.decodings import JUDGE as JUDGE_DECODING
from captioning.sweep.decodings import read_decodings, with_drop_shares
from captioning.sweep.parallel_runs import job_slots, run_in_slots
from captioning.sweep.variants import objective_variants, plan, read_objectives, read_weights
from captioning.training.validation_history import is_trained

CONFIG = "configs/real_photos.yaml"
OBJECTIVES = "mle,smile"
# SMILE needs a captioner that can already caption, so all objectives start from an MLE captioner.
FINE_TUNING = ("init_lr=2e-4", "warmup_steps=0", "max_epoch=3", "eval_every=3")
QUICK_PHOTOS = {"train": 60, "val": 12, "test": 24}
QUICK = ("max_epoch=2", "eval_every=2", "min_word_count=2")
QUICK_TUNING = ("max_epoch=1", "eval_every=1", "warmup_steps=0")


def parse(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_photos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", default=CONFIG, help=f"the configuration of all runs (default: {CONFIG})")
    add("--seeds", type=int, help="number of seeds (default: 3; with --quick 1)")
    add(
        "--objectives",
        help=f"as for captioning.sweep (default, without --mle: {OBJECTIVES}, and mixtures)",
    )
    add("--mle", metavar="W,W", help="as for captioning.sweep: MLE's shares of the mixtures")
    add("--decodings", metavar="NAME,NAME", help="as for captioning.sweep; without a judge")
    add("--jobs", type=int, default=2, help="programs at the same time (default: 2)")
    add("--quick", action="store_true", help="a few photos and epochs, to test the program")
    add("--output_dir", type=Path, help="default: output/real_photos, with --quick -quick added")
    add("overrides", nargs="*", metavar="key=value", help="for keys of all runs")
    return parser.parse_intermixed_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Return 0; 2 after a one-line error; 130 if stopped."""
    arguments = parse(argv)
    stopped = "stopped; the same command continues from here"
    return exit_code(lambda: _run(arguments), stopped)


def _run(arguments: argparse.Namespace) -> None:
    for name in ("seeds", "jobs"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise UserError(f"--{name} is {getattr(arguments, name)}; it must be 1 or more")
    quick, keys = arguments.quick, ["device=cpu", *arguments.overrides]
    folder = arguments.output_dir or Path("output/real_photos" + ("-quick" if quick else ""))
    tuning = QUICK_TUNING if quick else FINE_TUNING
    mixtures = plan(read_weights(arguments.mle), ()) if arguments.mle else []
    named = arguments.objectives or (None if mixtures else OBJECTIVES)
    others = objective_variants(read_objectives(named))
    variants = list({v.name: v for v in (*mixtures, *others)}.values())
    decodings = []
    if arguments.decodings:
        # A judge needs the captioner's vocabulary, and that of each seed is of its own photos.
        decodings = [n for n in read_decodings(arguments.decodings) if n != JUDGE_DECODING]
        variants = with_drop_shares(variants, [0.0])
    variants = [v._replace(overrides=(*v.overrides, *tuning)) for v in variants]
    if quick:
        config = load_config(arguments.config, keys)
        keys = [*QUICK, *write_few(config, QUICK_PHOTOS, folder / "photos"), *keys]
    seeds = [folder / f"seed{n}" for n in range(arguments.seeds or (1 if quick else 3))]
    jobs, sweeps = [], []
    for number, seed in enumerate(seeds):
        files = write_parts(load_config(arguments.config, keys), number, seed / "photos")
        # The judge has another seed than the captioner, so that it starts from other weights.
        for name, run_seed in ((START, number), (JUDGE, number + 1000)):
            own = [*keys, f"train_file={files[name]}", f"seed={run_seed}"]
            place = ["--config", arguments.config, "--output_dir", str(seed / name)]
            config = load_config(arguments.config, own, {"output_dir": place[-1]})
            # captioning.train refuses to continue a run with other settings.
            if not (is_trained(config) and _is_of(seed / name, config)):
                do = functools.partial(train.main, [*place, *own])
                jobs.append(Job(f"{seed.name}/{name}", do, seed / f"{name}.log"))
        tuned = {key.partition("=")[0] for key in tuning}
        own = [key for key in keys if key.partition("=")[0] not in tuned]
        own += [f"train_file={files[START]}", f"seed={number}", f"pretrained={seed / START / BEST}"]
        sweeps.append((seed, own))
    _check(run_in_slots(jobs, job_slots("cpu", arguments.jobs)))
    sweeps = [Sweep(arguments.config, None, seed, own, variants) for seed, own in sweeps]
    for sweep in sweeps:
        _check(sweep.train(arguments.jobs))
    print(write_summary(folder, seeds, variants), end="")
    if decodings:
        for sweep in sweeps:
            _check(sweep.decode(decodings, arguments.jobs))
        print(write_decoding_summary(folder, sweeps, decodings), end="")


def _is_of(folder: Path, config: Config) -> bool:
    """Whether the run in a folder has this configuration. Its data may be in another place."""
    before, now = load_config(folder / "config.yaml").model_dump(), config.model_dump()
    keys = [key for role in ("run", "batch", "length") for key in keys_of(role, type(config))]
    return all(key in before and before[key] == now[key] for key in keys)


def _check(failures: dict[str, str]) -> None:
    for name, reason in failures.items():
        raise UserError(f"{name} failed: {reason}")


if __name__ == "__main__":
    sys.exit(main())
