// Builds the static page: node web/build.mjs OUT NAME=LABEL=FOLDER [...], up to three models that
// `python -m BLIP.export --layout transformers.js` has written.

import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const MAX_MODELS = 3;
const SUFFIXES = { fp32: "", q8: "_quantized", fp16: "_fp16" };
const SETTINGS = ["config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"];
const VENDOR = [
  "@huggingface/transformers/dist/transformers.min.js",
  "onnxruntime-web/dist/ort-wasm-simd-threaded.asyncify.mjs",
  "onnxruntime-web/dist/ort-wasm-simd-threaded.asyncify.wasm",
];

function refuse(text) {
  console.error(`error: ${text}`);
  process.exit(2);
}

/** Parses NAME=LABEL=FOLDER, and sums the bytes of the model's files for each dtype. */
function parseModel(argument) {
  const [name, label, folder] = argument.split("=");
  if (!/^\w[\w.-]*$/.test(name) || !folder) refuse(`${argument} is not NAME=LABEL=FOLDER`);
  const graphs = (suffix) => ["encoder_model", "decoder_model_merged"].map((graph) => `onnx/${graph}${suffix}.onnx`);
  const bytes = Object.fromEntries(Object.entries(SUFFIXES).map(([dtype, suffix]) => {
    const files = [...SETTINGS, ...graphs(suffix)].map((file) => join(folder, file));
    const missing = files.find((file) => !existsSync(file));
    if (missing) refuse(`${missing} is missing: export the checkpoint again`);
    return [dtype, files.reduce((sum, file) => sum + statSync(file).size, 0)];
  }));
  return { name, label, folder, bytes };
}

const [out, ...given] = process.argv.slice(2);
if (!given.length || given.length > MAX_MODELS) refuse(`give a folder and 1 to ${MAX_MODELS} models, NAME=LABEL=FOLDER`);
const models = given.map(parseModel);
if (new Set(models.map(({ name }) => name)).size < models.length) refuse("two models have the same name");
const packages = join(HERE, "node_modules");
if (!existsSync(join(packages, VENDOR[0]))) refuse("the packages are missing: run npm ci --prefix web");
if (existsSync(out) && readdirSync(out).length && !existsSync(join(out, "models.json"))) {
  refuse(`${out} holds something else than a built page: give another folder`);
}
rmSync(out, { recursive: true, force: true });
cpSync(join(HERE, "page"), out, { recursive: true });
mkdirSync(join(out, "vendor"));
for (const file of VENDOR) cpSync(join(packages, file), join(out, "vendor", file.split("/").at(-1)));
for (const { name, folder } of models) cpSync(folder, join(out, "models", name), { recursive: true });
const listed = models.map(({ folder, ...model }) => model);
writeFileSync(join(out, "models.json"), JSON.stringify({ models: listed }, null, 2) + "\n");

const hash = createHash("sha256");
const files = readdirSync(out, { recursive: true }).sort().map((file) => join(out, file));
for (const file of files.filter((file) => statSync(file).isFile())) hash.update(readFileSync(file));
const worker = readFileSync(join(out, "sw.js"), "utf8");
writeFileSync(join(out, "sw.js"), worker.replace('"development"', `"${hash.digest("hex").slice(0, 16)}"`));
console.log(`wrote ${out}`);
