/** Where pipelines look for anomalies and patterns, and what they found: read out of plans and of queues. Pure. */

import type { MessageInfo, PlanNode } from "./types";

export type FinderKind = "anomalies" | "patterns";

export interface Finder {
  pipeline: string;
  step: string;
  kind: FinderKind;
  what: string;
  by: string;
  field: string;
  /** Where in a record its event time is; "": when it was stored. */
  time: string;
  sources: string[];
  sinks: string[];
}

export interface Finding {
  message: MessageInfo;
  key: unknown;
  /** Of an anomaly the record's time; of a match when it was complete. */
  time: string;
  name: string;
  value: number | null;
  mean: number | null;
  deviation: number | null;
  score: number | null;
  start: string | null;
  events: unknown[];
}

const SHAPES: [string, FinderKind][] = [
  ["detector string", "anomalies"],
  ["pattern string", "patterns"],
];

/** The steps that find something: known by the rows they give. */
export function finders(pipeline: string, nodes: PlanNode[]): Finder[] {
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const kindOf = (node: PlanNode | undefined) => SHAPES.find(([start]) => node?.schema?.startsWith(start))?.[1];
  return nodes.flatMap((node) => {
    const kind = node.state ? kindOf(node) : undefined;
    if (!kind) return [];
    const above = upstream(node, byName);
    return [
      {
        pipeline,
        step: node.name,
        kind,
        what: wordsOf(node),
        by: node.details.by ?? "",
        field:
          kind === "anomalies"
            ? (/ of (.+?)(?:, window|$)/.exec(node.details.what ?? "")?.[1] ?? node.name.replace(/^anomalies:/, ""))
            : "",
        time: above.find((each) => each.kind === "event_time")?.details.what ?? "",
        sources: queuesOf(above.filter((each) => each.kind === "read")),
        sinks: queuesOf(downstream(node, nodes).filter((each) => each.kind === "write")),
      },
    ];
  });
}

function wordsOf(node: PlanNode): string {
  if (node.details.what) return node.details.what;
  const told = Object.entries(node.details).filter(([name]) => name !== "by");
  return told.map(([name, value]) => `${name} ${value}`).join(", ") || node.name;
}

function upstream(node: PlanNode, byName: Map<string, PlanNode>): PlanNode[] {
  const found = new Map<string, PlanNode>();
  const visit = (each: PlanNode) =>
    each.inputs.forEach((name) => {
      const input = byName.get(name);
      if (!input || found.has(name)) return;
      found.set(name, input);
      visit(input);
    });
  visit(node);
  return [...found.values()];
}

function downstream(node: PlanNode, nodes: PlanNode[]): PlanNode[] {
  const reached = new Set([node.name]);
  const found: PlanNode[] = [];
  for (const each of nodes) {
    if (!each.inputs.some((name) => reached.has(name))) continue;
    reached.add(each.name);
    found.push(each);
  }
  return found;
}

function queuesOf(nodes: PlanNode[]): string[] {
  return nodes.flatMap((node) => /^queue (.+)$/.exec(node.details.what ?? "")?.[1] ?? []);
}

/** A message of a finder's queue as what it found; null: it is something else. */
export function finding(message: MessageInfo): Finding | null {
  const row = message.data as Record<string, unknown> | null;
  if (typeof row !== "object" || row === null) return null;
  const anomaly = "detector" in row;
  if (!anomaly && !("pattern" in row)) return null;
  if (anomaly && row.anomaly === false) return null; // a score of something usual
  const number = (name: string) => (typeof row[name] === "number" ? (row[name] as number) : null);
  const text = (name: string) => (typeof row[name] === "string" ? (row[name] as string) : null);
  return {
    message,
    key: row.key,
    time: (anomaly ? text("time") : text("end")) ?? message.createdAt,
    name: (anomaly ? text("detector") : text("pattern")) ?? "",
    value: number("value"),
    mean: number("mean"),
    deviation: number("deviation"),
    score: number("score"),
    start: text("start"),
    events: Array.isArray(row.events) ? row.events : [],
  };
}

export interface Series {
  times: number[];
  values: (number | null)[];
  marks: (number | null)[];
}

/** The values of one key in their source, with those marked that were found. */
export function seriesOf(finder: Finder, key: unknown, records: MessageInfo[], found: Finding[]): Series {
  const wanted = JSON.stringify(key);
  const points = new Map<number, { value: number; mark: number | null }>();
  for (const record of records) {
    if (JSON.stringify(keyOf(record.data, finder.by)) !== wanted) continue;
    const value = pick(record.data, finder.field);
    const at = timeOf(finder.time ? pick(record.data, finder.time) : record.createdAt);
    if (typeof value === "number" && at !== null) points.set(at, { value, mark: null });
  }
  for (const each of found) {
    const at = timeOf(each.time);
    if (JSON.stringify(each.key) === wanted && each.value !== null && at !== null)
      points.set(at, { value: each.value, mark: each.value });
  }
  const sorted = [...points.entries()].sort(([one], [other]) => one - other);
  return {
    times: sorted.map(([at]) => at),
    values: sorted.map(([, each]) => each.value),
    marks: sorted.map(([, each]) => each.mark),
  };
}

function keyOf(data: unknown, by: string): unknown {
  const parts = by.split(",").map((each) => pick(data, each.trim()));
  return parts.length === 1 ? parts[0] : parts;
}

/** What lies at a path such as `data.user.id`; `data.` and `payload.` may be left out. */
export function pick(data: unknown, path: string): unknown {
  const names = path.replace(/^(data|payload)\./, "").split(".");
  return names.reduce<unknown>(
    (at, name) => (typeof at === "object" && at !== null ? (at as Record<string, unknown>)[name] : undefined),
    data,
  );
}

/** Seconds since 1970 of ISO text, or of a number of seconds or milliseconds. */
function timeOf(value: unknown): number | null {
  if (typeof value === "number") return value > 1e11 ? value / 1000 : value;
  const at = typeof value === "string" ? Date.parse(value) / 1000 : NaN;
  return Number.isNaN(at) ? null : at;
}
