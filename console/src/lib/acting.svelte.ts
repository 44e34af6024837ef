/** The act that is being asked about, and what the last one did. */

import type { Act } from "./acts";

interface Asked {
  act: Act;
  done: (() => void) | undefined;
}

class Acting {
  asked = $state.raw<Asked | null>(null);
  /** Told once, in a corner; gone after some seconds. */
  told = $state<string | null>(null);
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Ask whether to do it; `done` is called after the broker has. */
  ask(act: Act, done?: () => void): void {
    this.asked = { act, done };
  }

  tell(words: string): void {
    this.told = words;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => (this.told = null), 6000);
  }
}

export const acting = new Acting();
