/** Dark, light, or as the system says. Kept in the browser: it is no secret. */

export type Theme = "auto" | "light" | "dark";

const KEY = "queen.theme";
const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };

class Themes {
  now = $state<Theme>((localStorage.getItem(KEY) as Theme | null) ?? "auto");
  /** Counts changes of colours, the system's too: drawings on canvas listen to it. */
  changes = $state(0);

  turn(): void {
    this.now = NEXT[this.now] ?? "auto";
    localStorage.setItem(KEY, this.now);
    applyTheme();
  }
}

export const theme = new Themes();

export function applyTheme(): void {
  document.documentElement.dataset.theme = theme.now;
  theme.changes += 1;
}

if (typeof matchMedia === "function")
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (theme.changes += 1));
