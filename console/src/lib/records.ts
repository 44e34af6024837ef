/** The newest records of one key in a finder's source queues. */

import { get, path } from "./api";
import type { Finder } from "./findings";
import type { MessageInfo, Search } from "./types";

const MOST = 600;
const PAGE = 200;

export async function recordsOf(finder: Finder, key: unknown, signal: AbortSignal): Promise<MessageInfo[]> {
  // A key of several fields cannot be searched for: then the newest of all keys are taken, and picked from here.
  const simple = !finder.by.includes(",") && (typeof key === "string" || typeof key === "number");
  const where: Record<string, string> = simple && finder.by ? { path: finder.by, value: JSON.stringify(key) } : {};
  const found = await Promise.all(finder.sources.map((queue) => search(queue, where, signal)));
  return found.flat();
}

async function search(queue: string, where: Record<string, string>, signal: AbortSignal): Promise<MessageInfo[]> {
  const found: MessageInfo[] = [];
  let before: string | null = null;
  do {
    const answer: Search = await get<Search>(
      path("queues", queue, "search"),
      { ...where, limit: PAGE, before },
      signal,
    );
    found.push(...answer.messages);
    before = answer.next;
  } while (before && found.length < MOST);
  return found;
}
