import { describe, expect, it } from "vitest";
import * as acts from "../src/lib/acts";
import { changes, type Change } from "../src/lib/options";

const ORIGIN = "http://127.0.0.1:6632";

describe("an act in its forms", () => {
  const act = acts.push("it's", "ann", { a: null, b: [true], "c'": 1 });

  it("is a curl command that a shell reads as meant", () => {
    expect(acts.copied(act, "curl", ORIGIN, false)).toBe(
      `curl -sS -X POST ${ORIGIN}/api/v1/push \\\n  -H 'Content-Type: application/json' \\\n  ` +
        `-d '{"items":[{"queue":"it'\\''s","partition":"ann","payload":{"a":null,"b":[true],"c'\\''":1}}]}'`,
    );
  });

  it("is Python with Python's literals", () => {
    expect(acts.copied(act, "python", ORIGIN, false)).toBe(
      `from queenstream import Queen\n\nwith Queen("${ORIGIN}") as queen:\n    ` +
        `queen.queue("it's").partition("ann").push({"a": None, "b": [True], "c'": 1})`,
    );
  });

  it("is a queen command", () => {
    expect(acts.copied(acts.seek("billing", "orders", { to: "end" }), "queen", ORIGIN, false)).toBe(
      `queen group seek billing --queue orders --to end --yes --url ${ORIGIN}`,
    );
  });

  it("never holds the token, only where it is taken from", () => {
    expect(acts.copied(act, "curl", ORIGIN, true)).toContain('-H "Authorization: Bearer $QUEEN_TOKEN"');
    expect(acts.copied(act, "python", ORIGIN, true)).toContain('token=os.environ["QUEEN_TOKEN"]');
  });

  it("offers no command where there is none", () => {
    expect(acts.forms(acts.deleteMessage("1", "x"))).toEqual(["curl", "python"]);
    expect(acts.forms(acts.deleteLetter("1"))).toEqual(["curl", "python", "queen"]);
  });
});

describe("what acts send", () => {
  it("encodes names in paths", () =>
    expect(acts.deleteQueue("a/b c", 1).path).toBe("/api/v1/resources/queues/a%2Fb%20c"));
  it("previews a seek without doing it", () => {
    const act = acts.seek("g", "q", { to: "2026-01-01T00:00:00Z", partition: "p" });
    expect(act.path).toBe("/api/v1/consumer-groups/g/queues/q/partitions/p/seek");
    expect(act.preview!.body).toEqual({ timestamp: "2026-01-01T00:00:00Z", dryRun: true });
    expect(act.body).toEqual({ timestamp: "2026-01-01T00:00:00Z" });
    expect(act.preview!.tell({ affected: 120, partitionsUpdated: 0 } as never)).toBe(
      "This moves it over 120 messages.",
    );
  });
  it("sends an edited payload, and none when it is as it was", () => {
    expect(acts.retryLetter("7").body).toEqual({});
    expect(acts.retryLetter("7", null).body).toEqual({ payload: null });
  });
  it("changes some options of a queue, and says all, as a call replaces them", () => {
    const now = { leaseTime: 300, retryLimit: 3, retentionEnabled: false };
    const edits = { leaseTime: "60", retryLimit: " 3", retentionEnabled: true };
    const changed = changes(now, edits);
    expect(changed).toHaveLength(2);
    const act = acts.configureQueue("q", now, changed as Change[]);
    expect(act.body).toEqual({ queue: "q", options: { leaseTime: 60, retryLimit: 3, retentionEnabled: true } });
    expect(act.says).toContain("leaseTime from 300 s to 60 s, retentionEnabled from off to on.");
    expect(act.python).toBe('queen.queue("q").config(lease_time=60, retry_limit=3, retention_enabled=True).create()');
    expect(act.queen).toBe("queue create q --set leaseTime=60 --set retryLimit=3 --set retentionEnabled=true");
    expect(changes(now, { leaseTime: "1.5" })).toBe("leaseTime is a whole number.");
    expect(changes(now, { leaseTime: "9".repeat(20) })).toBe("leaseTime is too large.");
  });
  it("says who may", () => {
    expect([acts.clearQueue("q", 1).role, acts.retryLetter("1").role]).toEqual(["admin", "read-write"]);
  });
});
