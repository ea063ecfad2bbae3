// Captions photos beside the page, so that the page stays responsive. Receives
// { file, model, dtype, max_length } and answers { caption } or { error }, after { status }s.

import { env, pipeline } from "./vendor/transformers.min.js";

env.remoteHost = new URL("./models/", location.href).href;
env.remotePathTemplate = "{model}/";
env.useWasmCache = false; // it would need scripts from blobs, which the page's policy forbids
const { wasm } = env.backends.onnx;
const runtime = new URL("./vendor/ort-wasm-simd-threaded.asyncify", location.href).href;
wasm.wasmPaths = { mjs: `${runtime}.mjs`, wasm: `${runtime}.wasm` };
wasm.numThreads = crossOriginIsolated ? navigator.hardwareConcurrency : 1;
const captioners = {};

/** Returns the model's pipeline, which is loaded once. The browser keeps its files. */
async function load(model, dtype) {
  const [name] = model.split("/");
  const progress_callback = ({ status, progress }) => {
    if (status === "progress_total") postMessage({ status: `Loading ${name}: ${Math.round(progress)} %` });
  };
  env.cacheKey = model;
  try {
    return (captioners[[model, dtype]] ??= await pipeline("image-to-text", model, { dtype, progress_callback }));
  } catch (error) {
    await self.caches?.delete(model); // a kept file may be damaged
    throw error;
  }
}

/** Returns the photo in the model's size, on white. The library's own scaling skips pixels. */
async function readPhoto(file, { width, height }) {
  const canvas = new OffscreenCanvas(width, height);
  const context = Object.assign(canvas.getContext("2d"), { fillStyle: "white", imageSmoothingQuality: "high" });
  context.fillRect(0, 0, width, height);
  context.drawImage(await createImageBitmap(file), 0, 0, width, height);
  return canvas;
}

/** A space that the tokenizer puts between Chinese or Japanese characters, as in decoding/characters.py. */
const SPACE = /(?<=[\u3000-\u30ff\u3400-\u9fff\uff00-\uff65]) (?=[\u3000-\u30ff\u3400-\u9fff\uff00-\uff65])/g;

onmessage = async ({ data: { file, model, dtype, max_length } }) => {
  try {
    const captioner = await load(model, dtype);
    const photo = await readPhoto(file, captioner.processor.image_processor.size);
    const [{ generated_text }] = await captioner(photo, { max_length });
    const [prompt] = captioner.model.generation_config.decoder_start_token_id;
    const start = captioner.tokenizer.decode(prompt, { skip_special_tokens: true });
    const caption = generated_text.slice(start.length).trim().replace(/^##/, ""); // a shifted first word
    postMessage({ caption: caption.replace(SPACE, "") });
  } catch (error) {
    postMessage({ error: String(error?.message ?? error) });
  }
};
