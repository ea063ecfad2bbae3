"""Runs one call of bulk captioning, from the plan to the summary."""

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from captioning.bulk import outputs, plan, ray_engine
from captioning.bulk.claims import caption_claimed, shared_counters
from captioning.bulk.inputs import Inputs
from captioning.bulk.plan import Plan
from captioning.bulk.request import Request
from captioning.bulk.work import Worker
from captioning.files import stores
from captioning.files.images import kinds_of
from captioning.metrics.scoring import warn_of_one_for_most
from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress

EXAMPLES = 3  # captions that are logged at the end
COMPARED = 1000  # captions, the first, that should not all be the same
# Settings that may differ between the captions of one file without a remark.
OF_INPUT = ("input", "glob", "root", "recursive", "captions", "existing", "sidecar")


@dataclass
class BulkCaptioning:
    """One call of bulk captioning, in one process or in those of torchrun.

    - settings: identify the run; a later call continues it only if they are the same
    - load: returns the captioner, see `CheckpointModel`; called only if there is work
    - cluster_device: the device of tasks on the Ray cluster to which this process is connected;
      None to caption in this process
    """

    request: Request
    settings: dict[str, Any]
    load: Callable[[], Any]
    cluster_device: Optional[torch.device] = None

    def __post_init__(self):
        self.model, self.is_resumed = None, False
        self.totals, self.left_out = Counter(), []

    def run(self) -> None:
        """Caption all images: the main process plans, all caption, the main process merges.

        Raises UserError, and Stopped after a signal. The captions so far are kept then, and the
        same command continues.
        """
        with contextlib.ExitStack() as locks:
            distributed.run_on_main(lambda: self._begin(locks))
            if distributed.broadcast_from_main(self.is_resumed):
                self._finish()  # images may have been added since its plan was made
            distributed.run_on_main(self._plan)
            self._finish()
            distributed.run_on_main(self._log_results)

    def _begin(self, locks: contextlib.ExitStack) -> None:
        request = self.request
        request.check()
        locks.enter_context(request.lock())
        if not plan.exists(request.parts):
            return
        if request.restart:
            with contextlib.suppress(UserError):  # it is of another version
                outputs.remove_tars(Plan(request.parts))
            plan.remove(request.parts)
            return
        if changes := self._changes(Plan(request.parts).header["settings"]):
            raise UserError(
                f"{request.out}: the unfinished run has {changes}: finish that run with its own "
                "settings, or abandon it with --restart"
            )
        log_line(f"continuing {request.out}")
        self.is_resumed = True

    def _changes(self, before: dict[str, Any], besides: Collection[str] = ()) -> str:
        """Return the settings, but for some, whose value is not that of an earlier run."""
        now = self.settings
        return ", ".join(
            f"{name} {before.get(name)!r} instead of {now.get(name)!r}"
            for name in sorted({*before, *now} - {*besides})
            if before.get(name) != now.get(name)
        )

    def _plan(self) -> None:
        request, totals = self.request, self.totals
        earlier = outputs.Earlier({}, {}, {})
        # An unfinished run with --existing overwrite has replaced the captions until then.
        if request.skips_existing or self.is_resumed:
            earlier = outputs.read_earlier(request, self.settings)
        if earlier.settings and (changes := self._changes(earlier.settings, OF_INPUT)):
            log_line(
                f"{request.out} has captions made with {changes}, which stay; "
                "--existing overwrite replaces them"
            )
        images = Inputs(request, earlier)
        header = {
            "settings": self.settings,
            "first_tar": outputs.first_tar(request),
            "counts": images.counts,
            "tars": images.tars,
        }
        plan.make(request.parts, header, images.units())
        # The images of a resumed run are skipped by this plan.
        resumed = totals["captioned"] + totals["filtered"]
        resumed += 0 if request.retry_failed else totals["failed"]
        totals["skipped"] = images.counts["skipped"] - resumed
        if changed := images.counts["other prompt"]:
            log_line(
                f"{changed} images have captions made with another prompt, which stay; "
                "--existing overwrite replaces them"
            )
        images.left_out.pop(request.sidecar, None)
        if images.left_out:
            log_line(kinds_of(images.left_out))

    def _finish(self) -> None:
        """Caption the units of the plan that are not done, then merge all units."""
        parts = self.request.parts
        # The main process lists for all: others may see files that are new or, in a store, late.
        made = distributed.run_on_main(lambda: Plan(parts))
        if made.left():
            try:
                self._caption(made)
            except BaseException:
                if distributed.is_main() and not Plan(parts).has_lines:
                    plan.remove(parts)  # such as after a wrong setting
                raise
        distributed.run_on_main(self._merge)

    def _caption(self, made: Plan) -> None:
        done = sum(map(made.kept, range(len(made))))
        total = None if made.header["tars"] else made.header["counts"]["planned"]
        if self.model is None and self.cluster_device is None:
            self.model = self.load()
            log_line(self.model.report)
        with progress(total, "captions", initial=done) as bar:
            if device := self.cluster_device:
                given = (self.request, made, self.load, bar.update, device)
                self.left_out += ray_engine.caption(*given)
            else:
                add = shared_counters(made.header["id"])

                def show(images: int) -> None:
                    bar.update(done + add("images", images) - bar.n)

                worker = Worker(self.request, made, self.model, show)
                caption_claimed(worker, add)
                show(0)
                for left_out in distributed.gather_on_main(worker.left_out) or ():
                    self.left_out += left_out

    def _merge(self) -> None:
        request = self.request
        made = Plan(request.parts)
        while made.left():  # a store may list new files late
            signals.raise_if_requested()
            time.sleep(0.2)
            made = Plan(request.parts)
        if len(made) or not stores.exists(request.out):
            self.totals.update(outputs.merge(request, made))
        outputs.export(request, made)
        plan.remove(request.parts)  # last: without a plan, the same command is a new run

    def _log_results(self) -> None:
        """Log what was done. Raises UserError if no image has a caption."""
        request, totals = self.request, self.totals
        failed = sum(1 for _ in outputs.lines_of(request.failed))
        why = f" ({request.failed} says why; --retry-failed tries them again)" if failed else ""
        lines = list(itertools.islice(outputs.lines_of(request.out), COMPARED))
        if totals["captioned"]:
            for line in lines[:EXAMPLES]:
                log_line(f"{line['image']}: {line['caption']}")
            warn_of_one_for_most([line["caption"] for line in lines])
        log_line(f"done {totals['captioned']}, skipped {totals['skipped']}, failed {failed}{why}")
        if request.filter:
            log_line(
                f"filter: {totals['filtered']} images have no caption with {request.filter}; "
                f"dropped captions are in {request.filtered}"
            )
        if totals["cut"]:
            log_line(f"{totals['cut']} captions were cut at max_length; their lines have cut: true")
        if self.left_out:
            log_line(
                f"left out: {len(self.left_out)} files in tars, such as {self.left_out[0]}: a "
                "sample, whose names are alike up to the first dot, has one image"
            )
        if failed and not (lines or totals["filtered"] or totals["skipped"] > failed):
            raise UserError(f"none of {failed} images has a caption{why}")
        log_line(f"captions are in {request.out}")
