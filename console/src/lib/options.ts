/** The options of a queue: what each means, and what a change of them is. Pure. */

import type { Options } from "./types";

export const UNITS: Record<string, string> = {
  leaseTime: "s",
  retryDelay: "ms",
  ttl: "s",
  delayedProcessing: "s",
  windowBuffer: "s",
  retentionSeconds: "s",
  completedRetentionSeconds: "s",
  maxWaitTimeSeconds: "s",
};

export const MEANS: Record<string, string> = {
  leaseTime: "how long a consumer may hold a partition",
  retryLimit: "failed tries before a message is given up on",
  retryDelay: "wait before the next try",
  ttl: "older messages are not delivered; 0: no limit",
  maxSize: "messages that may wait; 0: no limit",
  priority: "served first when a pop spans queues",
  delayedProcessing: "a message is invisible until it is that old",
  windowBuffer: "a partition is withheld until it has been quiet that long",
  retentionEnabled: "delete messages by age",
  retentionSeconds: "age at which they are deleted",
  completedRetentionSeconds: "age at which completed ones are deleted",
  maxWaitTimeSeconds: "a message that has waited longer is given up on",
  encryptionEnabled: "payloads are encrypted at rest",
  deadLetterQueue: "keep all dead letters for good",
  dlqAfterMaxRetries: "keep those whose tries were exhausted",
};

/** What somebody has typed or ticked, by option; those that are not in it stay. */
export type Edits = Record<string, string | boolean>;

export interface Change {
  name: string;
  from: number | boolean;
  to: number | boolean;
}

/** What the edits change, or what is wrong with one of them. */
export function changes(now: Options, edits: Edits): Change[] | string {
  const found: Change[] = [];
  for (const [name, from] of Object.entries(now)) {
    const edit = edits[name];
    if (edit === undefined) continue;
    if (typeof edit === "boolean") {
      if (edit !== from) found.push({ name, from, to: edit });
      continue;
    }
    if (!/^-?\d+$/.test(edit.trim())) return `${name} is a whole number.`;
    if (!Number.isSafeInteger(Number(edit))) return `${name} is too large.`;
    if (String(Number(edit)) !== String(from)) found.push({ name, from, to: Number(edit) });
  }
  return found;
}

/** "leaseTime from 300 s to 60 s". */
export function told({ name, from, to }: Change): string {
  const unit = UNITS[name] ? ` ${UNITS[name]}` : "";
  const shown = (value: number | boolean) => (typeof value === "boolean" ? (value ? "on" : "off") : `${value}${unit}`);
  return `${name} from ${shown(from)} to ${shown(to)}`;
}
