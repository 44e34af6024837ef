/**
 * The figures of this second: pushed by the broker (server-sent events), asked for every few seconds where that
 * does not get through, and neither while nobody looks. One connection for the whole page.
 */

import { ApiError, get, headers, path, reach, refusal } from "./api";
import { follow } from "./sse";
import { visible } from "./visible.svelte";
import type { LiveFigures, LiveHistory, LivePoint } from "./types";

export type Link = "connecting" | "live" | "polling" | "paused" | "away";

const POLL_MS = 3000;
const AGAIN_MS = 2000;
const MOST_POINTS = 300; // five minutes of seconds

class Live {
  now = $state.raw<LiveFigures | null>(null);
  points = $state.raw<LivePoint[]>([]);
  link = $state<Link>("connecting");
  problem = $state.raw<ApiError | null>(null);

  /** Of the page: runs until the effect that called it ends. */
  watch(): void {
    $effect(() => {
      void headers(); // another token: another connection
      if (!visible.now) {
        this.link = "paused";
        return;
      }
      const stop = new AbortController();
      void this.#run(stop.signal);
      return () => stop.abort();
    });
  }

  async #run(signal: AbortSignal): Promise<void> {
    this.link = "connecting";
    await this.#remember(signal);
    while (!signal.aborted) {
      const streamed = await this.#stream(signal);
      if (signal.aborted) return;
      // A stream that told something and then ended is opened again; one that never began is not to be had here.
      await (streamed ? pause(AGAIN_MS, signal) : this.#poll(signal));
    }
  }

  /** What was before the page was opened. */
  async #remember(signal: AbortSignal): Promise<void> {
    try {
      this.points = (await get<LiveHistory>(path("live", "history"), { minutes: 5 }, signal)).points.slice(
        -MOST_POINTS,
      );
    } catch (error) {
      this.#failed(error, signal);
    }
  }

  async #stream(signal: AbortSignal): Promise<boolean> {
    let told = false;
    try {
      const response = await reach(path("events"), { headers: headers(), signal });
      if (!response.ok || !response.body) throw await refusal(response);
      await follow(response.body, (event) => {
        if (event.event !== "figures") return;
        told = true;
        this.#take(JSON.parse(event.data) as LiveFigures, "live");
      });
    } catch (error) {
      this.#failed(error, signal);
    }
    return told;
  }

  /** Ask for some time, then try the stream again. */
  async #poll(signal: AbortSignal): Promise<void> {
    for (let turn = 0; turn < 10 && !signal.aborted; turn += 1) {
      try {
        this.#take(await get<LiveFigures>(path("live"), {}, signal), "polling");
      } catch (error) {
        this.#failed(error, signal);
        if (!signal.aborted) await pause(AGAIN_MS, signal);
        return;
      }
      await pause(POLL_MS, signal);
    }
  }

  #take(figures: LiveFigures, link: Link): void {
    this.now = figures;
    this.link = link;
    this.problem = null;
    const { rates, latency } = figures;
    const point: LivePoint = {
      time: figures.time,
      pushed: rates.pushed,
      popped: rates.popped,
      acked: rates.acked,
      failed: rates.failed,
      p50Ms: latency.p50Ms,
      p99Ms: latency.p99Ms,
      lagSeconds: figures.lagSeconds,
      deadLetters: figures.deadLetters,
    };
    this.points = [...this.points.slice(1 - MOST_POINTS), point];
  }

  #failed(error: unknown, signal: AbortSignal): void {
    if (signal.aborted) return;
    this.problem =
      error instanceof ApiError ? error : new ApiError("The connection to the broker broke off. Trying again.", 0);
    this.link = "away";
  }
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

export const live = new Live();
