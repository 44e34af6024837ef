import { describe, expect, it } from "vitest";
import { ago, bytes, compact, count, duration, moment, rate, several } from "../src/lib/format";
import { brief, parse, pretty } from "../src/lib/json";
import { instant, local } from "../src/lib/moments";

describe("numbers and times for people", () => {
  it.each([
    [0, "0 s"],
    [0.0041, "4.1 ms"],
    [0.5, "0.5 s"],
    [3.21, "3.2 s"],
    [59.99, "1 min"],
    [200, "3 min 20 s"],
    [3600, "1 h"],
    [90_061, "1 d 1 h"],
    [-5, "-5 s"],
  ])("a duration of %s s", (seconds, text) => expect(duration(seconds)).toBe(text));

  it("says nothing where nothing is known", () => {
    expect([count(null), rate(undefined), duration(null), bytes(null), moment(null)]).toEqual([
      "–",
      "–",
      "–",
      "–",
      "–",
    ]);
  });

  it("keeps figures short", () => {
    expect([count(1234567), compact(1234567), compact(0.042), compact(123.4), rate(15.13)]).toEqual([
      "1,234,567",
      "1.2M",
      "0.04",
      "123",
      "15.1/s",
    ]);
    expect([bytes(512), bytes(9_623_231), bytes(1024)]).toEqual(["512 B", "9.18 MiB", "1 KiB"]);
    expect([several(1, "message"), several(3, "message")]).toEqual(["1 message", "3 messages"]);
  });

  it("tells how long ago, and what is still to come", () => {
    const now = Date.parse("2026-01-01T12:00:00Z");
    expect([ago("2026-01-01T11:59:00Z", now), ago("2026-01-01T12:00:05Z", now), ago(null)]).toEqual([
      "1 min ago",
      "in 5 s",
      "never",
    ]);
  });

  it("goes from a date field to UTC and back", () => {
    expect(local(instant("2026-11-16T12:30:05"))).toBe("2026-11-16T12:30:05");
    expect([instant(""), instant("nonsense")]).toEqual(["", ""]);
  });
});

describe("payloads", () => {
  it("is cut to one line", () => expect(brief({ text: "x".repeat(300) }, 20)).toHaveLength(20));
  it("shows a number as it was sent", () => {
    // Where the browser has JSON.rawJSON, as Node has not before 22; else as JSON.parse reads it.
    const exact = "rawJSON" in JSON ? "9007199254740993" : "9007199254740992";
    expect(pretty(parse('{"id":9007199254740993}'))).toBe(`{\n  "id": ${exact}\n}`);
  });
});
