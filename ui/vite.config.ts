import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const OUT = "../src/myrmidon/server/web/static";

/** Writes FILE.gz and FILE.br beside every text asset, so that the server never compresses while it answers. */
function precompress(): Plugin {
  return {
    name: "precompress",
    apply: "build",
    closeBundle() {
      for (const path of filesBelow(OUT)) {
        if (!/\.(js|css|html|svg)$/.test(path)) continue;
        const content = readFileSync(path);
        writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }));
        writeFileSync(`${path}.br`, brotliCompressSync(content, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } }));
      }
    },
  };
}

function filesBelow(folder: string): string[] {
  return readdirSync(folder).flatMap((name) => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? filesBelow(path) : [path];
  });
}

// `make ui-dev` names a running server, and a token while the page is served by Vite and not by that server.
const server = process.env.MYRMIDON_SERVER ?? "http://127.0.0.1:8910";
const token = process.env.MYRMIDON_TOKEN;
const proxied = {
  target: server,
  changeOrigin: true,
  headers: { origin: server, ...(token ? { authorization: `Bearer ${token}` } : {}) },
};

export default defineConfig({
  plugins: [react(), tailwindcss(), precompress()],
  worker: { format: "es" },
  build: {
    outDir: OUT,
    emptyOutDir: true,
    target: "es2022",
    // The server's Content-Security-Policy allows files of its own only: nothing is embedded as a data: URL.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    reportCompressedSize: false,
  },
  server: { port: 5173, proxy: { "/api": proxied, "^/auth/(?!link)": proxied, "/readyz": proxied } },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
