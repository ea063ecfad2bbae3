"""Each classic captioner overfits 16 real photos from random weights."""

import json

import pytest

from baselines import MODELS
from captioning import train
from captioning.data import load_image

pytestmark = pytest.mark.slow

EPOCHS, COPIES = 7, 20  # an epoch is a step for each copy of the photos
SMALL = [
    *("encoder=shufflenet_v2_x0_5", "encoder_norm=true", "encoder_lr=1e-3", "image_size=64"),
    *("embed_dim=64", "hidden_dim=128", "attention_dim=64", "dropout=0", "label_smoothing=0"),
    *("batch_size=16", "captions_per_image=1", "init_lr=4e-3", "warmup_steps=10"),
    *(f"max_epoch={EPOCHS}", f"eval_every={EPOCHS}", "keep_checkpoints=1", "num_workers=0"),
    *("max_words=30", "max_tokens=40", "max_length=40", "num_beams=1", "metrics=[coco]"),
]


@pytest.fixture(scope="module")
def photos(shared_data, tmp_path_factory):
    """Return a folder of 16 photos, made small once, with annotations: to learn and to score on."""
    folder = tmp_path_factory.mktemp("photos")
    known = shared_data / "annotation" / "flickr8k_karpathy_train.json"
    one_each = {entry["image"]: entry for entry in json.loads(known.read_text())}
    entries = [*one_each.values()][:16]
    for entry in entries:
        small = load_image(shared_data / "photos" / entry["image"]).resize((64, 64))
        entry["image"] = f"{entry['image_id']}.png"
        small.save(folder / entry["image"])
    (folder / "photos.json").write_text(json.dumps(entries))
    (folder / "copies.json").write_text(json.dumps(entries * COPIES))
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_it_knows_them_by_heart(model, photos, repository, tmp_path):
    arguments = [
        *("--config", str(repository / "configs" / "classic_cpu.yaml"), "--device", "cpu"),
        *("--output_dir", str(tmp_path), f"model={model}", *SMALL),
        *(f"image_root={photos}", f"ann_root={photos}"),
        *("train_file=copies.json", "val_file=photos.json", "test_file=photos.json"),
    ]
    assert train.main(arguments) == 0
    result = tmp_path / "result" / f"val_epoch{EPOCHS - 1:02d}"
    scores = json.loads((result / "metrics.json").read_text())["metrics"]
    assert scores["Bleu_4"]["value"] > 0.9
    # Captions differ by photo: it has not learnt a single one.
    captions = json.loads(result.with_suffix(".json").read_text())
    assert len({entry["caption"] for entry in captions}) == 16
