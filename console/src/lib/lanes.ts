/** Windows as a time line: one lane for each key, each window a bar in it. Pure. */

import type { LateSpan, TimelineKey, WindowInfo } from "./types";

export interface Bar {
  window: WindowInfo;
  /** From the left edge and long, both as shares of the span. */
  left: number;
  width: number;
  /** Sliding windows overlap: each is drawn on the first free line of its lane. */
  line: number;
}

export interface LateMark {
  late: LateSpan;
  left: number;
}

export interface Lane {
  key: string;
  bars: Bar[];
  /** Messages that no window took, in the middle of the one they missed. */
  late: LateMark[];
  lines: number;
}

export interface Span {
  from: number;
  to: number;
}

/** From the first start to the last end; the present too, if it is not far. */
export function spanOf(keys: TimelineKey[], now: number): Span {
  const windows = keys.flatMap((each) => [...each.windows, ...each.late]);
  const starts = windows.flatMap((each) => (each.start ? [Date.parse(each.start)] : []));
  const ends = windows.flatMap((each) => (each.end ? [Date.parse(each.end)] : []));
  if (!starts.length) return { from: now - 60_000, to: now };
  const from = Math.min(...starts);
  const last = Math.max(...ends);
  const near = now > from && now - last < (last - from) * 0.5;
  return { from, to: Math.max(near ? now : last, last, from + 1000) };
}

export function lanes(keys: TimelineKey[], span: Span): Lane[] {
  const length = span.to - span.from;
  return keys.map(({ key, windows, late }) => {
    const ends: number[] = [];
    const bars = windows
      .filter((window) => window.start && window.end) // a count window without messages has no place in time
      .map((window) => ({ window, start: Date.parse(window.start!), end: Date.parse(window.end!) }))
      .sort((one, other) => one.start - other.start)
      .map(({ window, start, end }) => {
        let line = ends.findIndex((free) => free <= start);
        if (line < 0) line = ends.length;
        ends[line] = Math.max(end, start + 1);
        return { window, left: (start - span.from) / length, width: Math.max((end - start) / length, 0.0015), line };
      });
    const middle = (each: LateSpan) => (Date.parse(each.start) + Date.parse(each.end)) / 2;
    const marks = late.map((each) => ({ late: each, left: (middle(each) - span.from) / length }));
    return { key, bars, late: marks, lines: Math.max(1, ends.length) };
  });
}

/** Round moments for the axis: at most `most` of them. */
export function ticks(span: Span, most = 8): number[] {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400, 604_800].map(
    (each) => each * 1000,
  );
  const step = steps.find((each) => (span.to - span.from) / each <= most) ?? (span.to - span.from) / most;
  const first = Math.ceil(span.from / step) * step;
  return Array.from({ length: Math.floor((span.to - first) / step) + 1 }, (_each, index) => first + index * step);
}
