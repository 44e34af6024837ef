/** JSON as it was sent: integers beyond 2^53 keep their digits, where the browser can (`JSON.rawJSON`). */

interface Source {
  source?: string;
}
interface RawJson {
  rawJSON?: (text: string) => unknown;
}

const raw = (JSON as RawJson).rawJSON;

/** Parse; a whole number that a double cannot hold stays what was written. */
export function parse(text: string): unknown {
  if (!raw) return JSON.parse(text);
  const keep = (_key: string, value: unknown, context?: Source): unknown =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
      ? raw(context!.source!)
      : value;
  return JSON.parse(text, keep as (key: string, value: unknown) => unknown);
}

/** For people: two spaces a level. */
export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "null";
}

/** One line of at most `most` characters. */
export function brief(value: unknown, most = 160): string {
  const text = JSON.stringify(value) ?? "null";
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}
