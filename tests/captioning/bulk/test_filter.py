"""The filter: what it drops is exact, kept in a file of its own, and done."""

import os
import statistics
from itertools import chain

import pytest

from captioning.files.tars import samples
from captioning.metrics.itm import ItmScorer
from tests.captioning.bulk.conftest import read_lines
from tests.captioning.tar_files import write_tar

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow writes Parquet")


@pytest.fixture
def scored(itm_checkpoint):
    """Return a function that scores a caption of an image, one at a time."""
    scorer = ItmScorer(str(itm_checkpoint))

    def score(image, caption):
        return scorer.scores(scorer.read(image)[None], [[caption]]).item()

    return score


@pytest.fixture
def flags(itm_checkpoint):
    """Return a function: the flags of a threshold."""
    return lambda above: ["--filter", f" itm > {above:.3f}", "--itm_model", str(itm_checkpoint)]


@pytest.fixture
def dropped(tmp_path):
    """Return a function that reads what was dropped."""
    return lambda: read_lines(tmp_path / "out" / "captions.filtered.jsonl")


def test_what_is_not_above_goes_to_a_file_of_its_own_and_is_done(
    run, photos, scored, flags, dropped, itm_checkpoint, tmp_path, loaded
):
    lines, _ = run(photos, folder="unfiltered")
    scores = {line["image"]: scored(line["image"], line["caption"]) for line in lines}
    above = round(statistics.median(scores.values()), 3)
    (photos / "scene_000003a.png").write_bytes(b"no image")  # takes no other image's score
    more = ["--sidecar", "--write-shards", str(tmp_path / "tars"), "eval_batch_size=3"]
    more += ["--parquet", str(tmp_path / "a.parquet"), "--shard_size", "4"]
    kept, log = run(photos, *flags(above), *more)
    lost = dropped()
    assert {line["image"] for line in kept} == {name for name in scores if scores[name] > above}
    assert 3 <= len(kept) <= 7 and len(kept) + len(lost) == 10
    for line in (*kept, *lost):
        assert line["itm"] == pytest.approx(scores[line["image"]], abs=1e-4)
        assert line["settings"]["filter"] == f"itm>{above:g}"
        assert line["settings"]["itm_model"] == str(itm_checkpoint)
    captions = {line["image"]: line["caption"] for line in lines}
    assert {line["image"]: line["caption"] for line in (*kept, *lost)} == captions
    names = {line["image"] for line in kept}
    assert {str(path.with_suffix(".png")) for path in photos.rglob("*.txt")} == names
    tars = [samples(str(path)) for path in (tmp_path / "tars").glob("*.tar")]
    assert len([*chain(*tars)]) == len(kept)
    column = parquet.read_table(tmp_path / "a.parquet").column("itm").to_pylist()
    assert column == [line["itm"] for line in kept]
    assert f"done {len(kept)}, skipped 0, failed 1" in log
    assert f"filter: {len(lost)} images have no caption with itm>{above:g}; dropped " in log
    loaded.clear()
    again, log = run(photos, *flags(above), *more)
    assert (again, dropped(), loaded) == (kept, lost, []) and "done 0, skipped 11" in log


@pytest.mark.slow
def test_another_filter_tries_again_what_was_dropped(run, photos, flags, dropped):
    kept, _ = run(photos, *flags(0.999))
    lost = dropped()
    assert kept == [] and len(lost) == 10
    second, log = run(photos, *flags(0.0))
    assert "done 10, skipped 0, failed 0" in log and len(second) == 10 and not dropped()
    third, log = run(photos, *flags(0.999), "--existing", "overwrite")
    assert (third, dropped()) == (kept, lost)


@pytest.mark.slow
def test_each_of_several_captions_is_filtered(run, photos, scored, flags, dropped, tmp_path):
    write_tar(tmp_path / "a.tar", sorted(photos.glob("*.png")))
    several = ["--num_return", "2", "--prefix", "see ", "--suffix", "!", "sample=true"]
    several += ["temperature=3", "top_p=1"]
    whole, _ = run(tmp_path / "a.tar", *several, *flags(0.0))
    values = [value for line in whole for value in line["itms"]]
    above = round(statistics.median(values), 3)
    kept, _ = run(tmp_path / "a.tar", *several, *flags(above), "--existing", "overwrite")
    kept, lost = ({line["image"]: line for line in part} for part in (kept, dropped()))
    assert kept.keys() & lost.keys(), "no image has a good and a bad caption"
    for line in whole:
        triples = list(zip(line["captions"], line["scores"], line["itms"]))
        for text, _, value in triples:
            bare = text.removeprefix("see ").removesuffix("!")
            image = photos / os.path.basename(line["image"])
            assert value == pytest.approx(scored(image, bare), abs=1e-4)
        for part, wanted in ((kept, True), (lost, False)):
            expected = [each for each in triples if (each[2] > above) == wanted]
            found = part.get(line["image"])
            assert (found is None) == (not expected)
            if expected:
                names = ("caption", "score", "itm")
                assert tuple(found[name] for name in names) == expected[0]
                many = [found.get(f"{n}s", [found[n]]) for n in names]
                assert list(zip(*many)) == expected
                assert ("captions" in found) == (len(expected) > 1)
