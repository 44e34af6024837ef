/**
 * What the broker has, kept fresh while somebody looks.
 *
 *     const queues = resource((signal) => get<QueueList>(path("resources", "queues"), { search }, signal), 5);
 *
 * Asked again when state that the function reads changes, and every so many seconds while the page is visible.
 * The last answer stays while the next one is on its way; an error stands beside it.
 */

import { untrack } from "svelte";
import { ApiError } from "./api";
import { visible } from "./visible.svelte";

export class Resource<T> {
  data = $state.raw<T>();
  error = $state.raw<ApiError | null>(null);
  loading = $state(true);
  #asked = $state(0);

  /** Ask again now. */
  refresh = (): void => {
    this.#asked += 1;
  };

  /** Reading it makes an effect run again on `refresh`. */
  get turn(): number {
    return this.#asked;
  }
}

/** Of a component: it ends with it. `seconds` 0: asked once. */
export function resource<T>(ask: (signal: AbortSignal) => Promise<T>, seconds = 0): Resource<T> {
  const made = new Resource<T>();
  $effect(() => {
    void made.turn;
    if (!visible.now) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    const turn = (answer: Promise<T>) => {
      answer
        .then((data) => {
          if (stop.signal.aborted) return; // something else has been asked for since
          made.data = data;
          made.error = null;
        })
        .catch((error: unknown) => {
          if (stop.signal.aborted) return;
          made.error = error instanceof ApiError ? error : new ApiError(String(error), 0);
        })
        .finally(() => {
          if (stop.signal.aborted) return;
          made.loading = false;
          if (seconds) timer = setTimeout(() => turn(ask(stop.signal)), seconds * 1000);
        });
    };
    untrack(() => (made.loading = true));
    turn(ask(stop.signal)); // here, so that the effect knows what it depends on
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  });
  return made;
}
