"""Ways to break the code, each of which a test has to notice; tried by `tests.soak.mutations`."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """Code that is replaced, once in a file, and the tests (pytest's arguments) that must fail."""

    title: str
    path: str
    old: str
    new: str
    tests: str


STOPPED = "tests/e2e/test_stopped_runs.py -k loss_scaling"
TWO = "tests/e2e/test_stopped_runs.py -k test_two_processes"
NOT_FINITE = "tests/captioning/training/test_not_finite.py"
CHECKPOINTS = "tests/captioning/models/test_checkpoints.py"
SELECTION = "tests/captioning/training/test_selection.py"
RECIPE, STEP = "captioning/training/fine_tuning.py", "captioning/training/step.py"
ROLES = "tests/captioning/config/test_roles.py"
RESUME = "tests/captioning/training/test_resume.py"

MUTATIONS = [
    Mutation(
        "files are not synced before they are renamed",
        "captioning/files/writing.py",
        "            os.fsync(file.fileno())\n",
        "",
        "tests/captioning/files/test_writing.py",
    ),
    Mutation(
        "the folder is not synced after a rename",
        "captioning/files/writing.py",
        "            temporary.unlink()\n    sync_folder(path.parent)",
        "            temporary.unlink()",
        "tests/captioning/files/test_writing.py",
    ),
    Mutation(
        "checkpoints are written in place",
        "captioning/files/writing.py",
        'temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{SUFFIX}")',
        "temporary = path",
        f"{CHECKPOINTS} -k killed_before",
    ),
    Mutation(
        "the manifest comes after the checkpoint",
        "captioning/models/checkpoints.py",
        "            write_manifest(hashed, path)\n            _remove_sharded(path)\n",
        "            _remove_sharded(path)\n        write_manifest(hashed, path)\n",
        f"{CHECKPOINTS} -k killed_before",
    ),
    Mutation(
        "a hash that does not match is let through",
        "captioning/files/manifest.py",
        'if found["sha256"] != expected.get("sha256"):',
        "if False:",
        "tests/captioning/files/test_manifest.py",
    ),
    Mutation(
        "checkpoints are not verified on resume",
        "captioning/models/checkpoints.py",
        "            verify(path)\n",
        "",
        f"{CHECKPOINTS} -k flipped_bit",
    ),
    Mutation(
        "one checkpoint is kept instead of two",
        "captioning/models/checkpoints.py",
        "MIN_KEPT = 2",
        "MIN_KEPT = 1",
        CHECKPOINTS,
    ),
    Mutation(
        "what a killed run had begun to write stays",
        "captioning/models/checkpoints.py",
        "for path in [*unfinished_writes(folder), *orphans]:",
        "for path in []:",
        CHECKPOINTS,
    ),
    Mutation(
        "an epoch is done before its weights are kept",
        "captioning/training/run_state.py",
        "            if weights is not None:\n                checkpoints.save(whole, weights)\n"
        '            checkpoints.save({**whole, "optimizer": optimizer, **training}, path)\n',
        '            checkpoints.save({**whole, "optimizer": optimizer, **training}, path)\n'
        "            if weights is not None:\n                checkpoints.save(whole, weights)\n",
        SELECTION,
    ),
    Mutation(
        "SMILE is selected by CIDEr",
        "captioning/training/selection.py",
        'by_blips_rule = "coco" in config.metrics and training_terms(config) == ["mle"]',
        'by_blips_rule = "coco" in config.metrics',
        SELECTION,
    ),
    Mutation(
        "log lines of steps that are done again stay",
        "captioning/training/run_log.py",
        'return line["step"] <= step if line["event"] == "step" else line["step"] < epoch',
        "return True",
        "tests/captioning/training/test_run_log.py -k goes_on",
    ),
    Mutation(
        "the optimiser is not restored",
        "captioning/training/sharding.py",
        "    optimizer.load_state_dict(state)\n",
        "    pass\n",
        "tests/captioning/training/test_fine_tuning.py -k interrupted",
    ),
    Mutation(
        "the loss scale is not restored",
        "captioning/training/run_state.py",
        '            self.scaler.load_state_dict(content["scaler"])\n',
        "            pass\n",
        "tests/e2e/test_stopped_runs.py -k loss_scaling",
    ),
    Mutation(
        "the progress in the epoch is forgotten",
        RECIPE,
        "self.loader.set_epoch(epoch, done * per_step)",
        "self.loader.set_epoch(epoch)",
        STOPPED,
    ),
    Mutation(
        "what the epoch has summed up so far is forgotten",
        RECIPE,
        "Counter(self.progress.sums)",
        "Counter()",
        STOPPED,
    ),
    Mutation(
        "dropout draws on from the generator's state",
        STEP,
        "torch.manual_seed(derived_seed(",
        "str(derived_seed(",
        STOPPED,
    ),
    Mutation(
        "all ranks draw the same",
        STEP,
        "self.config.seed, number, distributed.rank())",
        "self.config.seed, number, 0)",
        "tests/e2e/test_not_finite.py -k gradient",
    ),
    Mutation(
        "other numbers of images a step are let through on resume",
        "captioning/training/resume.py",
        "            _check_batches(config, content)\n",
        "",
        "tests/e2e/test_stopped_runs.py -k another_number",
    ),
    Mutation(
        "other settings are let through on resume",
        "captioning/training/resume.py",
        "            _check_settings(config, content)\n",
        "",
        ROLES,
    ),
    Mutation(
        "another length moves a cosine unseen",
        "captioning/training/resume.py",
        "if config.lr_schedule in LENGTH_DEPENDENT",
        "if False",
        RESUME,
    ),
    Mutation(
        "another tokenizer is let through on resume",
        "captioning/config/keys.py",
        "tokenizer: Name",
        'tokenizer: Annotated[Name, "data"]',
        RESUME,
    ),
    Mutation(
        "ranks do not agree on a request to stop",
        STEP,
        "bool(signals.stop_requested())]",
        "bool(signals.stop_requested() and distributed.is_main())]",
        TWO,
    ),
    Mutation(
        "a request to stop is not looked at in generation",
        "captioning/runtime/distributed.py",
        "    for _ in range(rounds):\n        raise_if_stop_requested()\n",
        "    for _ in range(rounds):\n",
        "tests/captioning/runtime/test_signals.py",
    ),
    Mutation(
        "data workers take signals for theirs",
        "captioning/runtime/signals.py",
        "        signal.signal(number, signal.SIG_IGN)",
        "        pass",
        "tests/captioning/runtime/test_signals.py",
    ),
    Mutation(
        "what is not finite is swallowed",
        STEP,
        "        if problem:\n",
        "        if False:\n",
        NOT_FINITE,
    ),
    Mutation(
        "an overflow is passed over for good",
        "captioning/training/nonfinite_report.py",
        "MIN_SCALE = 1.0",
        "MIN_SCALE = 0.0",
        "tests/captioning/training/test_loss_scaling.py",
    ),
    Mutation(
        "a step that failed is not kept",
        RECIPE,
        "self.state.save_step(self.folder, self.progress, step)\n            ",
        "pass\n            ",
        NOT_FINITE,
    ),
    Mutation(
        "the wrong rank is blamed",
        "captioning/training/nonfinite_report.py",
        "[report for report in reports if not report[-1]] or reports",
        "reports[:1]",
        "tests/e2e/test_not_finite.py",
    ),
    Mutation(
        "a batch without labels upsets those it is accumulated with",
        STEP,
        "reference = reference.where(reference > 0, totals[-1][0])",
        "reference = totals[0][0].clamp(min=1)",
        "tests/captioning/training/test_odd_batches.py -k accumulated",
    ),
    Mutation(
        "a label beyond the head is an index crash",
        "smile/labels.py",
        "is_invalid = (labels != ignore_index) & ((labels < 0) | (labels >= vocabulary))",
        "is_invalid = labels.new_zeros(labels.shape, dtype=torch.bool)",
        "tests/smile/test_losses.py",
    ),
    Mutation(
        "ranks save running statistics of their own",
        "captioning/runtime/distributed.py",
        "for buffer in module.buffers():",
        "for buffer in []:",
        "tests/captioning/runtime/test_distributed.py -k running_statistics",
    ),
]
