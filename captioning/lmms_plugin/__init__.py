"""Makes captioners available as models of lmms-eval, as a plugin of lmms-eval.

    LMMS_EVAL_PLUGINS=captioning.lmms_plugin python -m lmms_eval --model captioner \\
        --model_args checkpoint=output/caption_coco,num_beams=3 --tasks coco2017_cap_val
"""
