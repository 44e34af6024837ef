/** Figures of steps out of a run's figures: `steps.<step>.taken` and so on. */

export interface StepFigures {
  taken: number | null;
  given: number | null;
  failed: number | null;
  late: number | null;
  /** Records taken a second, between two reports; null: not known yet. */
  rate: number | null;
  /** How far event time has come, as a time in milliseconds; null: the step does not go by it. */
  watermark: number | null;
  /** How far that was behind the clock when the run told, in seconds. */
  behind: number | null;
  /** Shares of the last ten seconds, 0 to 1: it worked; steps after it held it up. */
  busy: number | null;
  backpressure: number | null;
}

export interface Report {
  at: number;
  stats: Record<string, number>;
}

export function stepFigures(step: string, now: Report, before: Report | null): StepFigures {
  const read = (what: string) => now.stats[`steps.${step}.${what}`] ?? null;
  const taken = read("taken") ?? read("given");
  const earlier = before?.stats[`steps.${step}.taken`] ?? before?.stats[`steps.${step}.given`];
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  const known = taken !== null && earlier !== undefined && seconds > 0 && taken >= earlier;
  const reached = read("watermark_timestamp_seconds");
  return {
    taken: read("taken"),
    given: read("given"),
    failed: read("failed"),
    late: read("late"),
    rate: known ? (taken - earlier) / seconds : null,
    watermark: reached === null ? null : reached * 1000,
    behind: reached === null ? null : now.at / 1000 - reached,
    busy: read("busy_ratio"),
    backpressure: read("backpressure_ratio"),
  };
}

/** The figures of sinks or phases, by name, in the order in which the run reports them. */
export function figuresBy(
  part: "sinks" | "phases",
  stats: Record<string, number>,
): [string, Record<string, number | undefined>][] {
  const found = new Map<string, Record<string, number | undefined>>();
  for (const [figure, value] of Object.entries(stats)) {
    const end = figure.lastIndexOf(".");
    if (!figure.startsWith(`${part}.`) || end <= part.length) continue;
    const name = figure.slice(part.length + 1, end);
    found.set(name, { ...found.get(name), [figure.slice(end + 1)]: value });
  }
  return [...found];
}

/** What the shares are shares of, which is not the same on both engines. */
export const MEANING: Record<string, string> = {
  local:
    "Of the last ten seconds. Busy: the step worked, or wrote. Held up: steps after it worked, or the sinks had to be waited for, or its buffer was full.",
  spark:
    "Of the last ten seconds. Spark computes all steps of a batch together, so they share one busy time; sinks have their own. Held up: of a source, by the whole batch; of a step, by the sinks after it.",
};
