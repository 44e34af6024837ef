/** Figures of steps out of a run's figures: `steps.<step>.taken` and so on. */

export interface StepFigures {
  taken: number | null;
  given: number | null;
  failed: number | null;
  late: number | null;
  /** Records taken a second, between two reports; null: not known yet. */
  rate: number | null;
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
  return {
    taken: read("taken"),
    given: read("given"),
    failed: read("failed"),
    late: read("late"),
    rate: known ? (taken - earlier) / seconds : null,
  };
}
