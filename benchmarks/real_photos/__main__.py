"""Train MLE, SMILE and mixtures on real photographs, over several seeds, and compare them.

python -m benchmarks.real_photos
python -m benchmarks.real_photos --seeds 2 --objectives mle,smile,focal --jobs 1
python -m benchmarks.real_photos --mle 0,0.5,1 --objectives mixce --decodings all

For each seed, a captioner is trained with MLE on two thirds of the training photos. Copies of it
are then fine-tuned, one with each objective, by `captioning.sweep`. Another captioner, the judge,
is trained on the remaining third and on the validation photos. The captions of the test photos are
scored. In addition, the judge tries to find the photo of each caption. Finished runs are not
repeated, and stopped runs are resumed. Writes to --output_dir: results.json, table.md, plane.svg,
report.html, and a folder for each run. With --decodings, captions are also generated with other
decodings, and decodings.md and decodings.svg are written.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import smile
from adapters.program import program_parser
from benchmarks.real_photos.parts import JUDGE, START, write_parts, write_subsets
from benchmarks.real_photos.summary import write_decoding_summary, write_summary
from captioning import train
from captioning.config import load_config
from captioning.models.checkpoints import BEST
from captioning.runtime.jobs import Job
from captioning.runtime.program import run_program
from captioning.sweep.decodings import JUDGE as JUDGE_DECODING
from captioning.sweep.decodings import read_decodings, with_drop_shares
from captioning.sweep.parallel_runs import job_slots, raise_failures, run_in_slots
from captioning.sweep.runs import Sweep
from captioning.sweep.variants import Variant, check_counts, plan, read_names, read_weights
from captioning.training.output_folder import OutputFolder
from captioning.training.resume import resume_content
from captioning.training.validation_history import is_trained

CONFIG = "configs/real_photos.yaml"
OBJECTIVES = "mle,smile"
# SMILE needs a captioner that can already caption, so all objectives start from an MLE captioner.
# FINE_TUNING has the overrides of fine-tuning.
FINE_TUNING = ("init_lr=2e-4", "warmup_steps=0", "max_epoch=3", "eval_every=3")
# For --quick: {split: number of photos}, overrides of all runs, and overrides of fine-tuning.
QUICK_PHOTOS = {"train": 60, "val": 12, "test": 24}
QUICK = ("max_epoch=2", "eval_every=2", "min_word_count=2")
QUICK_TUNING = ("max_epoch=1", "eval_every=1", "warmup_steps=0")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program. Return 0, or 2 after a one-line error, or 130 if stopped."""
    parser = program_parser("python -m benchmarks.real_photos", __doc__)
    add = parser.add_argument
    add("--config", default=CONFIG, help=f"the configuration of all runs (default: {CONFIG})")
    add("--seeds", type=int, help="number of seeds (default: 3; with --quick 1)")
    add(
        "--objectives",
        help=f"as for captioning.sweep (default, without --mle: {OBJECTIVES}, and mixtures)",
    )
    add("--mle", metavar="W,W", help="as for captioning.sweep: MLE's shares of the mixtures")
    add("--decodings", metavar="NAME,NAME", help="as for captioning.sweep; without a judge")
    add("--jobs", type=int, default=2, help="runs at the same time (default: 2)")
    add("--quick", action="store_true", help="a few photos and epochs, to test the program")
    add("--output_dir", type=Path, help="default: output/real_photos, with --quick -quick added")
    add("overrides", nargs="*", metavar="key=value", help="for keys of all runs")
    arguments = parser.parse_intermixed_args(argv)
    interrupted = "stopped; run the same command again to continue"
    return run_program(lambda: _run(arguments), interrupted)


def _run(arguments):
    check_counts(arguments, "seeds", "jobs")
    quick, keys = arguments.quick, ["device=cpu", *arguments.overrides]
    folder = arguments.output_dir or Path("output/real_photos" + ("-quick" if quick else ""))
    tuning = QUICK_TUNING if quick else FINE_TUNING
    variants, decodings = _read_variants(arguments, tuning)
    if quick:
        config = load_config(arguments.config, keys)
        keys = [*QUICK, *write_subsets(config, QUICK_PHOTOS, folder / "photos"), *keys]
    seed_folders = [folder / f"seed{n}" for n in range(arguments.seeds or (1 if quick else 3))]
    # The variants set the keys of fine-tuning, so a `Sweep` refuses these keys as overrides.
    tuning_keys = {key.partition("=")[0] for key in tuning}
    sweep_keys = [key for key in keys if key.partition("=")[0] not in tuning_keys]
    jobs, sweeps = [], []
    for seed, seed_folder in enumerate(seed_folders):
        files = write_parts(load_config(arguments.config, keys), seed, seed_folder / "photos")
        run_keys = [
            *sweep_keys,
            f"train_file={files[START]}",
            f"seed={seed}",
            f"pretrained={seed_folder / START / BEST}",
        ]
        sweeps.append(Sweep(arguments.config, None, seed_folder, run_keys, variants))
        # The judge has another seed, so that its initial weights differ from the captioner's.
        for name, run_seed in ((START, seed), (JUDGE, seed + 1000)):
            run_keys = [*keys, f"train_file={files[name]}", f"seed={run_seed}"]
            jobs += _training_job(arguments.config, seed_folder, name, run_keys)
    raise_failures(run_in_slots(jobs, job_slots("cpu", arguments.jobs)))
    for sweep in sweeps:
        raise_failures(sweep.train(arguments.jobs))
    print(write_summary(folder, seed_folders, variants), end="")
    if decodings:
        for sweep in sweeps:
            raise_failures(sweep.decode(decodings, arguments.jobs))
        print(write_decoding_summary(folder, sweeps, decodings), end="")


def _read_variants(arguments, tuning: Sequence[str]) -> tuple[list[Variant], list[str]]:
    """Return the variants to fine-tune and the names of the decodings. Raises UserError.

    tuning: overrides of fine-tuning.
    """
    weights = read_weights(arguments.mle) if arguments.mle else []
    objectives = arguments.objectives or (None if weights else OBJECTIVES)
    variants = plan(weights, read_names(objectives, smile.OBJECTIVES, "an objective"))
    decodings = []
    if arguments.decodings:
        # The decoding JUDGE needs a judge with the vocabulary of the captioner. Here they differ,
        # because the vocabulary of each captioner is made from its own training photos.
        decodings = [n for n in read_decodings(arguments.decodings) if n != JUDGE_DECODING]
        variants = with_drop_shares(variants, [0.0])
    return [v._replace(overrides=(*v.overrides, *tuning)) for v in variants], decodings


def _training_job(config_file: str, seed_folder: Path, name: str, keys: list[str]) -> list[Job]:
    """Return a job that trains a run of a seed; none if the run has finished.

    Raises UserError if the run has finished with other settings.
    """
    folder = str(seed_folder / name)
    config = load_config(config_file, keys, {"output_dir": folder})
    if is_trained(config):
        resume_content(config, OutputFolder(config.output_dir))  # checks the settings
        return []
    command = ["--config", config_file, "--output_dir", folder, *keys]
    train_run = functools.partial(train.main, command)
    return [Job(f"{seed_folder.name}/{name}", train_run, seed_folder / f"{name}.log")]


if __name__ == "__main__":
    sys.exit(main())
