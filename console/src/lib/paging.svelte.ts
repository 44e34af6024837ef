/**
 * A long list, fetched page by page as the reader scrolls.
 *
 *     const rows = paging((after, signal) => get<…>(…).then((found) => ({ rows: found.rows, next: found.next })));
 *
 * `next` is whatever the following page is asked with (an offset, a cursor); undefined: this was the last.
 */

import { ApiError } from "./api";
import { visible } from "./visible.svelte";

const FIRST_PAGE = 200; // rows; no first page is longer

export interface Slice<T, C> {
  rows: T[];
  next: C | undefined;
  /** What the answer says beyond rows: a total, that a search ended early. */
  total?: number | undefined;
  note?: string | undefined;
}

export class Paging<T, C> {
  rows = $state.raw<T[]>([]);
  error = $state.raw<ApiError | null>(null);
  loading = $state(true);
  total = $state<number>();
  note = $state<string>();
  #next: C | undefined = undefined;
  #busy = false;
  #signal: AbortSignal | undefined;
  #turn = $state(0);

  constructor(private fetch: (after: C | undefined, signal: AbortSignal) => Promise<Slice<T, C>>) {}

  refresh = (): void => {
    this.#turn += 1;
  };

  get turn(): number {
    return this.#turn;
  }

  get more(): boolean {
    return this.#next !== undefined;
  }

  start(signal: AbortSignal, first: Promise<Slice<T, C>>): void {
    this.#signal = signal;
    this.#busy = true;
    this.loading = true;
    void this.#take(signal, first, []);
  }

  /** The next page, if there is one and none is on its way. */
  grow = (): void => {
    const signal = this.#signal;
    if (this.#busy || this.#next === undefined || !signal) return;
    this.#busy = true;
    void this.#take(signal, this.fetch(this.#next, signal), this.rows);
  };

  async #take(signal: AbortSignal, asked: Promise<Slice<T, C>>, before: T[]): Promise<void> {
    try {
      const slice = await asked;
      if (signal.aborted) return;
      this.rows = [...before, ...slice.rows];
      this.#next = slice.next;
      this.total = slice.total;
      this.note = slice.note;
      this.error = null;
    } catch (error) {
      if (signal.aborted) return;
      this.error = error instanceof ApiError ? error : new ApiError(String(error), 0);
    }
    this.loading = false;
    this.#busy = false;
  }
}

/** Of a component. Begins anew when state that the function reads changes; `seconds`: only while one page is shown. */
export function paging<T, C>(
  fetch: (after: C | undefined, signal: AbortSignal) => Promise<Slice<T, C>>,
  seconds = 0,
): Paging<T, C> {
  const made = new Paging<T, C>(fetch);
  $effect(() => {
    void made.turn;
    if (!visible.now) return;
    const stop = new AbortController();
    const ask = () => made.start(stop.signal, fetch(undefined, stop.signal));
    ask();
    // A list that the reader has scrolled down stays as it is: rows must not jump under the pointer.
    const timer = seconds ? setInterval(() => made.rows.length <= FIRST_PAGE && ask(), seconds * 1000) : undefined;
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  });
  return made;
}
