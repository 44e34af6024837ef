import { describe, expect, it } from "vitest";
import { rank, type Entry } from "../src/lib/palette";
import { href, match } from "../src/lib/routes";
import { EventParser } from "../src/lib/sse";
import { slice } from "../src/lib/virtual";

describe("addresses", () => {
  it.each([
    ["/", "overview", {}],
    ["/queues/", "queues", {}],
    ["/queues/a%2Fb%20%3Cb%3E", "queue", { queue: "a/b <b>" }],
    ["/messages/7/x%3Ay", "message", { partition: "7", transaction: "x:y" }],
  ])("%s", (path, page, params) => expect(match(path)).toEqual({ page, params }));
  it.each(["/nothing", "/queues/a/b", "/queues/%E0%A4%A"])("%s is none", (path) => expect(match(path)).toBeNull());
  it("is made so that it is found again", () => {
    const name = "a/b?c#d%";
    expect(match(href(["queues", name]))).toEqual({ page: "queue", params: { queue: name } });
    expect(href(["queues"], { search: "x y", state: "", task: null })).toBe("/queues?search=x+y");
  });
});

describe("server-sent events", () => {
  it("come out whole, however they are cut", () => {
    const text = 'retry: 2000\n\n: hello\n\nevent: figures\ndata: {"a":1}\n\ndata: one\ndata: two\r\n\r\nevent: fig';
    for (let size = 1; size < text.length; size += 1) {
      const parser = new EventParser();
      const found = [];
      for (let at = 0; at < text.length; at += size) found.push(...parser.take(text.slice(at, at + size)));
      expect(found).toEqual([
        { event: "figures", data: '{"a":1}' },
        { event: "message", data: "one\ntwo" },
      ]);
    }
  });
});

describe("a long list", () => {
  it("has only the rows in sight, and space for the others", () => {
    const { from, to, before, after } = slice(100_000, 34, 1_700_000, 680);
    expect(from).toBeLessThanOrEqual(50_000);
    expect(to).toBeGreaterThanOrEqual(50_020);
    expect(to - from).toBeLessThan(60);
    expect(before + (to - from) * 34 + after).toBe(100_000 * 34);
  });
  it("shows the end of a list that has become shorter", () => expect(slice(10, 34, 99_999, 680).to).toBe(10));
  it("is empty when there is nothing", () =>
    expect(slice(0, 34, 0, 680)).toEqual({ from: 0, to: 0, before: 0, after: 0 }));
});

describe("the palette", () => {
  const entries: Entry[] = ["demo.orders", "orders", "reorder", "old records"].map((name) => ({
    kind: "queue",
    name,
    href: name,
  }));
  const names = (typed: string) => rank(typed, entries).map((entry) => entry.name);
  it("finds what begins so first, then what holds it, then the letters in order", () => {
    expect(names("ord")).toEqual(["orders", "reorder", "demo.orders", "old records"]);
    expect(names("dmrd")).toEqual(["demo.orders"]);
    expect(names("zzz")).toEqual([]);
    expect(names("  ")).toHaveLength(4);
  });
});
