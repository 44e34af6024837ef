import { describe, expect, it } from "vitest";
import { attention } from "../src/lib/attention";
import { finders, finding, pick, seriesOf } from "../src/lib/findings";
import { BOX, layout } from "../src/lib/graph";
import { lanes, spanOf, ticks } from "../src/lib/lanes";
import { figuresBy, stepFigures } from "../src/lib/steps";
import type { LiveFigures, MessageInfo, PlanNode, WindowInfo } from "../src/lib/types";

const at = (seconds: number) => new Date(seconds * 1000).toISOString();

function window(start: number, end: number, more: Partial<WindowInfo> = {}): WindowInfo {
  const base = { messages: 1, closedAt: null, attempt: null, leasedUntil: null, complete: true, error: null };
  return { id: `${start}`, key: "a", start: at(start), end: at(end), state: "open", ...base, ...more };
}

describe("the time line of windows", () => {
  it("puts windows where they are in time, and those that overlap on lines of their own", () => {
    const keys = [{ key: "a", windows: [window(0, 10), window(5, 15), window(10, 20)], late: [] }];
    const span = spanOf(keys, 1_000_000_000_000);
    expect(span).toEqual({ from: 0, to: 20_000 });
    const [lane] = lanes(keys, span);
    expect(lane!.bars.map((bar) => [bar.left, bar.width, bar.line])).toEqual([
      [0, 0.5, 0],
      [0.25, 0.5, 1],
      [0.5, 0.5, 0],
    ]);
    expect(lane!.lines).toBe(2);
  });
  it("leaves out count windows that have no message, and keeps their key", () => {
    const keys = [
      {
        key: "a",
        windows: [window(0, 10, { start: null, end: null })],
        late: [{ start: at(0), end: at(10), messages: 2 }],
      },
    ];
    const [lane] = lanes(keys, { from: 0, to: 10_000 });
    expect(lane!.bars).toEqual([]);
    expect(lane!.late[0]!.left).toBe(0.5);
  });
  it("reaches to the present only if that is near", () => {
    const keys = [{ key: "a", windows: [window(0, 100)], late: [] }];
    expect(spanOf(keys, 120_000).to).toBe(120_000);
    expect(spanOf(keys, 9_000_000).to).toBe(100_000);
  });
  it("has round moments on its axis", () =>
    expect(ticks({ from: 1_500, to: 41_500 })).toEqual([5, 10, 15, 20, 25, 30, 35, 40].map((each) => each * 1000)));
});

const node = (name: string, inputs: string[], more: Partial<PlanNode> = {}): PlanNode => ({
  name,
  kind: "apply",
  where: "",
  inputs,
  details: {},
  on_error: "skip",
  state: false,
  schema: null,
  ...more,
});

describe("the graph of a pipeline", () => {
  it("stands each step behind its inputs, and none on another", () => {
    const drawing = layout([
      node("a", []),
      node("b", []),
      node("c", ["a"]),
      node("join", ["c", "b"]),
      node("x", ["join"]),
      node("y", ["join"]),
    ]);
    const place = new Map(drawing.placed.map((each) => [each.node.name, each]));
    expect(place.get("c")!.x).toBeGreaterThan(place.get("a")!.x);
    expect(place.get("join")!.x).toBeGreaterThan(place.get("c")!.x);
    expect(new Set(drawing.placed.map(({ x, y }) => `${x},${y}`)).size).toBe(6);
    expect(Math.abs(place.get("x")!.y - place.get("y")!.y)).toBeGreaterThanOrEqual(BOX.height);
    expect(drawing.edges).toHaveLength(5);
  });
  it("does not hang on a plan that cannot be", () => {
    expect(layout([node("a", ["b"]), node("b", ["a", "gone"])]).placed).toHaveLength(2);
  });
  it("knows the rate of a step from two reports, and none after a restart", () => {
    const before = { at: 0, stats: { "steps.s.taken": 100 } };
    expect(stepFigures("s", { at: 5000, stats: { "steps.s.taken": 150, "steps.s.failed": 2 } }, before)).toMatchObject({
      rate: 10,
      taken: 150,
      failed: 2,
      late: null,
    });
    expect(stepFigures("s", { at: 5000, stats: { "steps.s.taken": 3 } }, before).rate).toBeNull();
  });
  it("knows how far event time is behind at a step, and nothing where there is none", () => {
    const stats = { "steps.s.watermark_timestamp_seconds": 990, "steps.s.busy_ratio": 0.25 };
    const found = stepFigures("s", { at: 1_000_000, stats }, null);
    expect(found).toMatchObject({ watermark: 990_000, behind: 10, busy: 0.25, backpressure: null });
    expect(stepFigures("t", { at: 1_000_000, stats }, null)).toMatchObject({ watermark: null, behind: null });
  });
  it("groups the figures of sinks and phases by name, also of a name with dots", () => {
    const stats = { "sinks.files:a.b.rows": 3, "sinks.files:a.b.bytes": 90, "phases.read.seconds": 1.5, messages: 3 };
    expect(figuresBy("sinks", stats)).toEqual([["files:a.b", { rows: 3, bytes: 90 }]]);
    expect(figuresBy("phases", stats)).toEqual([["read", { seconds: 1.5 }]]);
  });
});

describe("findings", () => {
  const plan = [
    node("queue:readings", [], { kind: "read", details: { what: "queue readings" } }),
    node("time", ["queue:readings"], { kind: "event_time", details: { what: "data.at" } }),
    node("anomalies:temp", ["time"], {
      kind: "stateful",
      state: true,
      schema: "detector string, key variant",
      details: { what: "zscore of temp, window 10m", by: "sensor" },
    }),
    node("queue:alerts", ["anomalies:temp"], {
      kind: "write",
      schema: "detector string, key variant",
      details: { what: "queue alerts" },
    }),
  ];
  const message = (data: unknown): MessageInfo => ({
    id: "1",
    transactionId: "t",
    partitionId: "1",
    queue: "q",
    partition: "p",
    status: "pending",
    traceId: null,
    producerSub: null,
    createdAt: at(0),
    data,
    retryCount: 0,
  });

  it("are looked for where the plan says", () => {
    expect(finders("p", plan)).toEqual([
      {
        pipeline: "p",
        step: "anomalies:temp",
        kind: "anomalies",
        what: "zscore of temp, window 10m",
        by: "sensor",
        field: "temp",
        time: "data.at",
        sources: ["readings"],
        sinks: ["alerts"],
      },
    ]);
  });
  it("are marked on the series of their key", () => {
    const [finder] = finders("p", plan);
    const alert = finding(
      message({ detector: "d", key: "s1", time: at(2), value: 35, mean: 20, deviation: 1, score: 15, anomaly: true }),
    )!;
    const records = [1, 2, 3].flatMap((n) => [
      message({ sensor: "s1", temp: n === 2 ? 35 : 20, at: at(n) }),
      message({ sensor: "s2", temp: 0, at: at(n) }),
    ]);
    expect(seriesOf(finder!, "s1", records, [alert])).toEqual({
      times: [1, 2, 3],
      values: [20, 35, 20],
      marks: [null, 35, null],
    });
  });
  it("leaves out rows that are none", () => {
    expect([
      finding(message({ detector: "d", anomaly: false })),
      finding(message("text")),
      finding(message(null)),
      finding(message({ other: 1 })),
    ]).toEqual([null, null, null, null]);
  });
  it("reads paths as the broker does", () => {
    expect([pick({ user: { id: 7 } }, "data.user.id"), pick({ user: null }, "user.id"), pick("text", "x")]).toEqual([
      7,
      undefined,
      undefined,
    ]);
  });
});

describe("what needs attention", () => {
  const figures = {
    database: { connected: true, oldestTransactionSeconds: null },
    groups: [{ consumerGroup: "billing", queue: "orders", lagSeconds: 90 }],
    pipelines: [{ name: "totals", state: "failed", messagesPerSecond: 0 }],
  } as unknown as LiveFigures;
  it("is told worst first, with where to look", () => {
    expect(attention(figures).map((care) => [care.level, care.href])).toEqual([
      ["bad", "/pipelines/totals"],
      ["warn", "/groups/billing"],
    ]);
  });
  it("is nothing when all is well", () => expect(attention({ ...figures, groups: [], pipelines: [] })).toEqual([]));
});
