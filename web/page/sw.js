// Keeps the page, the runtime and the models for use offline. Refuses requests outside the page's
// folder, also those of workers. Adds the headers that threads need, in case the host sends none.

const VERSION = "development"; // a hash of all files, set by build.mjs
const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; img-src 'self' blob:; media-src 'self' blob:; style-src 'self'; base-uri 'none'; form-action 'none'",
};
const scope = new URL("./", location.href).href;

addEventListener("install", (event) => {
  skipWaiting();
  const files = ["./", "style.css", "icon.svg", "page.js", "worker.js", "decode.js", "pixels.js", "models.json"];
  event.waitUntil(caches.open(scope + VERSION).then((cache) => cache.addAll(files.map((url) => new Request(url, { cache: "reload" })))));
});

addEventListener("activate", (event) => {
  const isOld = (name) => name.startsWith(scope) && name !== scope + VERSION;
  const clear = caches.keys().then((names) => Promise.all(names.filter(isOld).map((name) => caches.delete(name))));
  event.waitUntil(clear.then(() => clients.claim()));
});

/** Returns the answer from the cache, or else from the host. The host's answer is then cached. */
async function fetchAndKeep(request) {
  const cache = await caches.open(scope + VERSION);
  const kept = await cache.match(request, { ignoreVary: true });
  if (kept) return kept;
  const found = await fetch(request, { cache: "no-cache" });
  // The library asks for a range first, for a file's size; some hosts send the whole file.
  if (found.status !== 200 || request.headers.has("range")) return found;
  cache.put(request, found.clone()).catch(() => {}); // no room: it is fetched again next time
  return found;
}

async function fetchWithHeaders(request) {
  const found = await fetchAndKeep(request);
  const headers = new Headers(found.headers);
  for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
  return new Response(found.body, { status: found.status, statusText: found.statusText, headers });
}

addEventListener("fetch", (event) => {
  const { request } = event;
  if (!request.url.startsWith(scope)) return event.respondWith(Response.error());
  if (request.method === "GET") event.respondWith(fetchWithHeaders(request));
});
