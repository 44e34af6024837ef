/** The addresses of the console. The broker answers each with the same page (`broker/api/console.py`). */

export type PageName =
  | "overview"
  | "queues"
  | "queue"
  | "message"
  | "groups"
  | "group"
  | "streams"
  | "stream"
  | "letters"
  | "letter"
  | "pipelines"
  | "pipeline"
  | "analytics"
  | "system";

export interface Found {
  page: PageName;
  params: Record<string, string>;
}

const PATTERNS: [string, PageName][] = [
  ["/", "overview"],
  ["/queues", "queues"],
  ["/queues/{queue}", "queue"],
  ["/messages/{partition}/{transaction}", "message"],
  ["/groups", "groups"],
  ["/groups/{group}", "group"],
  ["/streams", "streams"],
  ["/streams/{stream}", "stream"],
  ["/dead-letters", "letters"],
  ["/dead-letters/{letter}", "letter"],
  ["/pipelines", "pipelines"],
  ["/pipelines/{pipeline}", "pipeline"],
  ["/analytics", "analytics"],
  ["/system", "system"],
];

/** The page at a path, and what its braces stand for; null: there is none. */
export function match(path: string): Found | null {
  const parts = path === "/" ? ["", ""] : path.replace(/\/$/, "").split("/");
  for (const [pattern, page] of PATTERNS) {
    const params = fit(pattern.split("/"), parts);
    if (params) return { page, params };
  }
  return null;
}

function fit(pattern: string[], parts: string[]): Record<string, string> | null {
  if (pattern.length !== parts.length) return null;
  const params: Record<string, string> = {};
  for (const [index, segment] of pattern.entries()) {
    const part = parts[index]!;
    if (segment.startsWith("{")) {
      try {
        params[segment.slice(1, -1)] = decodeURIComponent(part);
      } catch {
        return null;
      }
    } else if (segment !== part) return null;
  }
  return params;
}

/** A path of these segments, each encoded, with a query of what is not empty. */
export function href(segments: string[], query: Record<string, string | number | null | undefined> = {}): string {
  const path = "/" + segments.map(encodeURIComponent).join("/");
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return search ? `${path}?${search}` : path;
}

export const to = {
  queue: (queue: string, query: Record<string, string | null> = {}) => href(["queues", queue], query),
  message: (partitionId: string, transactionId: string) => href(["messages", partitionId, transactionId]),
  group: (group: string) => href(["groups", group]),
  stream: (stream: string, query: Record<string, string | null> = {}) => href(["streams", stream], query),
  letter: (id: string) => href(["dead-letters", id]),
  letters: (query: Record<string, string | null> = {}) => href(["dead-letters"], query),
  pipeline: (pipeline: string) => href(["pipelines", pipeline]),
};
