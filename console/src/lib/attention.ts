/** What an operator should look at now, the worst first. */

import { duration, several } from "./format";
import { to } from "./routes";
import type { LiveFigures, Maintenance, Status } from "./types";

export interface Care {
  level: "warn" | "bad" | "info";
  kind: string;
  text: string;
  href: string;
}

const LAGGING_SECONDS = 60;
const LONG_TRANSACTION_SECONDS = 300;

export function attention(now: LiveFigures | null, status?: Status, maintenance?: Maintenance): Care[] {
  const cares: Care[] = [];
  const add = (level: Care["level"], kind: string, text: string, href: string) =>
    cares.push({ level, kind, text, href });
  if (now && !now.database.connected)
    add("bad", "database", "The database does not answer: nothing is stored or delivered.", "/system");
  for (const pipeline of now?.pipelines ?? []) {
    if (pipeline.state === "failed")
      add("bad", "pipeline", `Pipeline ${pipeline.name} has failed.`, to.pipeline(pipeline.name));
    if (pipeline.state === "lost")
      add(
        "warn",
        "pipeline",
        `Pipeline ${pipeline.name} has told nothing for half a minute.`,
        to.pipeline(pipeline.name),
      );
  }
  for (const group of now?.groups ?? []) {
    if (group.lagSeconds >= LAGGING_SECONDS)
      add(
        "warn",
        "lag",
        `Group ${group.consumerGroup} is ${duration(group.lagSeconds)} behind in ${group.queue}.`,
        to.group(group.consumerGroup),
      );
  }
  if (status?.deadLetters.lastHour)
    add(
      "warn",
      "dead letters",
      `${several(status.deadLetters.lastHour, "message")} given up on in the last hour.`,
      "/dead-letters",
    );
  const held = now?.database.oldestTransactionSeconds ?? 0;
  if (held >= LONG_TRANSACTION_SECONDS)
    add("warn", "database", `A transaction has been open for ${duration(held)}: vacuum cannot clean up.`, "/system");
  if (maintenance?.maintenanceMode || maintenance?.popMaintenanceMode)
    add("info", "maintenance", sentence(maintenance.message), "/system");
  return cares;
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1) + ".";
}
