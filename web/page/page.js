// The page: what a visitor chooses and sees. worker.js does the work.

import { checkHeader } from "./pixels.js";

const $ = (selector) => document.querySelector(selector);
const say = (text) => ($("#status").textContent = text);
const MEGABYTE = 2 ** 20;
// A module whose function returns a vector: only a browser with wasm SIMD accepts it.
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11];
const PRECISIONS = { fp32: "32 bits", fp16: "16 bits", q8: "8 bits" };

const damaged = new Set(); // names of models whose kept files cannot be read
let worker, question, models = [], photo = null, asked = 0;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function start() {
  worker?.terminate();
  worker = new Worker("worker.js", { type: "module" });
  worker.addEventListener("message", ({ data }) => heard(data));
  worker.addEventListener("error", (event) => {
    event.preventDefault();
    worker = null;
    const reason = event.message || "it could not be loaded";
    heard({ kind: "failed", id: asked, text: `The captioner stopped (${reason}). It starts again with the next caption.` });
    heard({ kind: "done", id: asked });
  });
}

function send(names) {
  worker.postMessage({ ...question, models: names, damaged: [...damaged] });
}

function card(name) {
  return document.getElementById(`card-${name}`);
}

function show(name, parts) {
  const box = card(name);
  for (const [part, value] of Object.entries(parts)) {
    const target = box.querySelector(`.${part}`);
    if (part === "bar") {
      target.hidden = value === null;
      if (value !== null) target.value = value;
    } else target.replaceChildren(...[value].flat());
  }
}

function words(list) {
  return list.map(({ word, probability }) => {
    const percent = `${Math.round(probability * 100)} %`;
    const item = element("li", {}, word, element("small", {}, percent));
    item.style.setProperty("--share", percent.replace(" ", ""));
    return item;
  });
}

/** What the worker says. Answers to an earlier question are dropped. */
function heard({ kind, id, name, ...more }) {
  if (more.isDamaged) damaged.add(name);
  if (more.restart) {
    const names = models.map((model) => model.name);
    start();
    send(id === asked ? names.slice(names.indexOf(name) + 1) : names);
  }
  if (id !== undefined && id !== asked) return;
  if (kind === "loading") {
    const all = models.find((model) => model.name === name).bytes[$("[name=dtype]").value];
    const [have, of] = [more.bytes, all].map((bytes) => (bytes / MEGABYTE).toFixed(1));
    show(name, { state: `Loading: ${have} of ${of} MB`, bar: Math.min(1, more.bytes / all) });
  } else if (kind === "encoding") show(name, { state: "Looking at the photo", bar: 0 });
  else if (kind === "words") {
    show(name, { state: "Writing", bar: more.done / more.all, words: words(more.words) });
  } else if (kind === "caption") {
    show(name, { state: "", bar: null, text: more.text, words: words(more.words) });
    card(name).dataset.tokens = more.tokens.join(" ");
    damaged.delete(name);
    say(`${models.find((model) => model.name === name).label}: ${more.text}`);
  } else if (kind === "failed") {
    // A photo that cannot be read fails for all models.
    for (const model of models.filter((each) => !name || each.name === name)) {
      show(model.name, { state: element("span", { className: "failed" }, more.text), bar: null });
    }
    say(more.text);
  } else if (kind === "done") {
    $("#caption").disabled = false;
    document.body.dataset.done = id;
  }
}

function caption() {
  if (!photo || !$("#settings").reportValidity()) return;
  const { dtype, device, ...lengths } = Object.fromEntries(new FormData($("#settings")));
  const settings = Object.fromEntries(Object.entries(lengths).map(([key, text]) => [key, Number(text)]));
  asked += 1;
  $("#caption").disabled = true;
  question = { id: asked, file: photo, dtype, device, settings };
  if (!worker) start();
  for (const { name } of models) show(name, { state: "Waiting", bar: 0, text: "", words: [] });
  say("");
  send(models.map(({ name }) => name));
}

async function choose(file) {
  if (!file) return say("There is no photo in what was dropped or pasted.");
  photo = file;
  // A photo with too many pixels is not shown: decoding it could take all memory.
  const shown = await checkHeader(file).then(() => URL.createObjectURL(file), () => "data:,");
  if (photo !== file) return;
  const image = $("#photo");
  URL.revokeObjectURL(image.src);
  image.src = shown;
  image.alt = `The photo ${file.name ?? ""}`;
  image.hidden = false;
  image.onerror = () => (image.hidden = true);
  $("#hint").hidden = true;
  caption();
}

async function take() {
  const camera = $("#camera");
  if (!camera.srcObject) {
    try {
      camera.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      return say("There is no camera, or the browser may not use it. Cameras need https or this machine.");
    }
    camera.hidden = false;
    $("#photo").hidden = $("#hint").hidden = true;
    $("#take").textContent = "Take it now";
    return camera.play();
  }
  const canvas = new OffscreenCanvas(camera.videoWidth, camera.videoHeight);
  canvas.getContext("2d").drawImage(camera, 0, 0);
  camera.srcObject.getTracks().forEach((track) => track.stop());
  camera.srcObject = null;
  camera.hidden = true;
  $("#take").textContent = "Take a photo";
  const blob = await canvas.convertToBlob();
  choose(new File([blob], "from the camera"));
}

function listen() {
  $("#file").addEventListener("change", ({ target }) => {
    if (target.files.length) choose(target.files[0]);
    target.value = ""; // so that the same photo can be chosen again
  });
  $("#take").addEventListener("click", take);
  $("#settings").addEventListener("submit", (event) => {
    event.preventDefault();
    caption();
  });
  addEventListener("paste", ({ clipboardData }) => {
    const file = [...clipboardData.files][0];
    if (file || !clipboardData.getData("text")) choose(file);
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    $("#drop").classList.add("over");
  });
  addEventListener("dragleave", () => $("#drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("#drop").classList.remove("over");
    choose(event.dataTransfer.files[0]);
  });
}

/** Resolve once the service worker has the page: it keeps only what is asked for after that. */
async function keep() {
  await navigator.serviceWorker.register("sw.js");
  await navigator.serviceWorker.ready;
  if (navigator.serviceWorker.controller) return;
  await new Promise((go) => {
    navigator.serviceWorker.addEventListener("controllerchange", go, { once: true });
    setTimeout(go, 3000); // a page that is reloaded with Shift never gets a controller
  });
}

async function main() {
  if (!WebAssembly.validate(new Uint8Array(SIMD))) {
    return say("This browser has no WebAssembly SIMD, which the captioner needs. Please update it.");
  }
  await keep().catch(() => say("The models cannot be kept for use offline: that needs https or this machine."));
  try {
    models = (await (await fetch("models.json")).json()).models;
  } catch {
    return say("models.json is missing or damaged: build the folder again.");
  }
  $("#cards").replaceChildren(...models.map(({ name, label }) =>
    element("article", { className: "card", id: `card-${name}` },
      element("h2", {}, label),
      element("p", { className: "state" }, "Waiting for a photo"),
      element("progress", { className: "bar", max: 1, hidden: true, ariaLabel: `Progress of ${label}` }),
      element("p", { className: "text" }),
      element("ul", { className: "words", ariaLabel: `Words of ${label} with their probabilities` }))));
  for (const [value, text] of Object.entries(PRECISIONS)) {
    const bytes = models.reduce((sum, model) => sum + model.bytes[value], 0);
    $("[name=dtype]").append(element("option", { value }, `${text}, ${Math.ceil(bytes / MEGABYTE)} MB`));
  }
  if (await navigator.gpu?.requestAdapter().catch(() => null)) {
    $("[name=device]").append(element("option", { value: "webgpu" }, "graphics card (untested)"));
  }
  listen();
  $("#caption").disabled = true;
  document.body.dataset.ready = "";
}

main();
