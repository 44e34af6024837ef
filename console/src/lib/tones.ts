/** Which colour a state has, everywhere the same. */

export const TONES = {
  message: { pending: "", processing: "info", completed: "good", dead: "bad" },
  window: { open: "info", ripe: "warn", closed: "", waiting: "warn", leased: "info", done: "good", dead: "bad" },
  group: { Stable: "good", Lagging: "warn", Dead: "bad" },
  run: { running: "good", stopped: "", failed: "bad", lost: "warn" },
} as const;
