import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

const target = process.env.QUEEN_URL ?? "http://127.0.0.1:6632";
// A broker without a key compares Origin with Host, and the browser's Origin is this server: keep its Host.
const broker = { target, changeOrigin: !/^http:\/\/(localhost|127\.|\[::1\])/.test(target) };

// Built files lie flat beside each other and are named after their content: the broker serves them for good.
export default defineConfig(({ mode }) => ({
  base: mode === "development" ? "/" : "/console/",
  plugins: [svelte()],
  // Component tests run in Node, where Svelte would otherwise be its server half.
  resolve: process.env.VITEST ? { conditions: ["browser"] } : {},
  build: {
    outDir: "../src/queenstream/broker/static",
    emptyOutDir: true,
    assetsDir: "",
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": broker, "/health": broker, "/metrics": broker, "/openapi.json": broker } },
  test: { include: ["tests/**/*.test.ts"], pool: "threads", isolate: false },
}));
