"""The configuration of a run of seconds; what differs from test to test is added to it."""

# `data` is a folder of scenes, as captioning.scenes makes it.
TINY_RUN = """
dataset: custom
image_root: {data}
ann_root: {data}
train_file: scenes_train.json
val_file: scenes_val.json
test_file: scenes_test.json
tokenizer: {data}/vocab.txt
objective: {{mle: 0.5, smile: 0.5}}
vit: {{embed_dim: 32, depth: 1, num_heads: 4}}
med_config: {{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 4, intermediate_size: 32}}
image_size: 32
batch_size: 8
captions_per_image: 2
init_lr: 1e-3
max_epoch: 3
num_workers: 0
"""
