// Serves a built page on this machine: node web/serve.mjs FOLDER [PORT [plain]]. Port 0 chooses a
// free port. With `plain`, the headers that threads need are not sent.

import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, resolve, sep } from "node:path";

const TYPES = {
  ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css",
  ".svg": "image/svg+xml", ".json": "application/json", ".wasm": "application/wasm",
};
const [folder, port = "7861", plain] = process.argv.slice(2);
const root = resolve(folder);
const THREAD_HEADERS = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

const server = createServer((request, response) => {
  try {
    const path = decodeURIComponent(new URL(request.url, "http://page").pathname);
    let file = join(root, path);
    if (file !== root && !file.startsWith(root + sep)) throw new Error("outside of the folder");
    if (statSync(file).isDirectory()) file = join(file, "index.html");
    const type = TYPES[extname(file)] ?? "application/octet-stream";
    const length = statSync(file).size;
    response.writeHead(200, { "Content-Type": type, "Content-Length": length, ...(plain ? {} : THREAD_HEADERS) });
    createReadStream(file).pipe(response);
  } catch {
    response.writeHead(404).end();
  }
});
server.on("error", (error) => {
  console.error(`error: ${error.message}`);
  process.exitCode = 2;
});
server.listen(Number(port), "127.0.0.1", () => {
  console.log(`open http://127.0.0.1:${server.address().port}`);
});
