/**
 * What an operator can do, each written once: the request, what it will do in words, who may, and the same as
 * curl, as Python and as a `queen` command. Pure: `components/ActDialog.svelte` shows and sends them.
 */

import { count, several } from "./format";
import { told, type Change } from "./options";
import { path } from "./paths";
import type { Role } from "./session.svelte";
import type { Options } from "./types";

export interface Act {
  /** On the button and in the dialog's head: "Delete the queue orders". */
  title: string;
  /** On the button that does it: "Delete". */
  verb: string;
  /** What will happen, in full sentences. */
  says: string;
  method: "POST" | "DELETE";
  path: string;
  body?: unknown;
  role: Role;
  danger?: boolean;
  /** A line of Python on a `queen` that is connected. */
  python: string;
  /** The command line's words after `queen`; null: no command does this. */
  queen: string | null;
  /** Asks the broker what it would do, before it is done. */
  preview?: { body: unknown; tell: (answer: never) => string };
  /** What was done, from the broker's answer. */
  tell: (answer: never) => string;
}

export type Form = "curl" | "python" | "queen";

/** The forms that this act has. */
export function forms(act: Act): Form[] {
  return act.queen === null ? ["curl", "python"] : ["curl", "python", "queen"];
}

/** The act in one of its forms, ready to paste. The token is never written out. */
export function copied(act: Act, form: Form, origin: string, guarded: boolean): string {
  if (form === "curl") return curl(act, origin, guarded);
  if (form === "queen") return `queen ${act.queen} --url ${quote(origin)}`;
  const token = guarded ? ', token=os.environ["QUEEN_TOKEN"]' : "";
  const imports = (guarded ? "import os\n" : "") + "from queenstream import Queen\n\n";
  return `${imports}with Queen(${literal(origin)}${token}) as queen:\n    ${act.python}`;
}

function curl(act: Act, origin: string, guarded: boolean): string {
  const parts = [`curl -sS -X ${act.method} ${quote(origin + act.path)}`];
  if (guarded) parts.push('-H "Authorization: Bearer $QUEEN_TOKEN"');
  if (act.body !== undefined)
    parts.push("-H 'Content-Type: application/json'", `-d ${quote(JSON.stringify(act.body))}`);
  return parts.join(" \\\n  ");
}

/** A word for a POSIX shell. */
export function quote(text: string): string {
  return /^[A-Za-z0-9_./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A Python literal: JSON's, but for three words. */
export function literal(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object" && !isRaw(value)) {
    const pairs = Object.entries(value).map(([name, each]) => `${literal(name)}: ${literal(each)}`);
    return `{${pairs.join(", ")}}`;
  }
  return JSON.stringify(value);
}

function isRaw(value: object): boolean {
  return "rawJSON" in value && Object.getPrototypeOf(value) === null;
}

function named(options: Record<string, string | null | undefined>): string {
  return Object.entries(options)
    .filter(([, value]) => value)
    .map(([name, value]) => `, ${name}=${literal(value)}`)
    .join("");
}

function flags(options: Record<string, string | null | undefined>): string {
  return Object.entries(options)
    .filter(([, value]) => value)
    .map(([name, value]) => ` --${name} ${quote(value!)}`)
    .join("");
}

export function push(queue: string, partition: string, payload: unknown): Act {
  const lane = partition || "Default";
  return {
    title: `Push a message into ${queue}`,
    verb: "Push",
    says: `One message is stored at the end of partition ${lane} of ${queue}. Every consumer group will get it.`,
    method: "POST",
    path: path("push"),
    body: { items: [{ queue, partition: lane, payload }] },
    role: "read-write",
    python: `queen.queue(${literal(queue)}).partition(${literal(lane)}).push(${literal(payload)})`,
    queen: `push ${quote(queue)} --partition ${quote(lane)} ${quote(JSON.stringify(payload))}`,
    tell: () => `Stored in ${lane}.`,
  };
}

export function configureQueue(queue: string, now: Options, changed: Change[]): Act {
  // A call replaces all options, so all are said.
  const options: Options = { ...now, ...Object.fromEntries(changed.map(({ name, to }) => [name, to])) };
  const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  const pairs = Object.entries(options);
  return {
    title: `Change options of ${queue}`,
    verb: "Change",
    says: `It changes ${changed.map(told).join(", ")}. All other options stay as they are. Every broker goes by it from the next push and pop on; leases that are out keep their time.`,
    method: "POST",
    path: path("configure"),
    body: { queue, options },
    role: "read-write",
    danger: true,
    python: `queen.queue(${literal(queue)}).config(${pairs.map(([name, value]) => `${snake(name)}=${literal(value)}`).join(", ")}).create()`,
    queen: `queue create ${quote(queue)}${pairs.map(([name, value]) => ` --set ${name}=${value}`).join("")}`,
    tell: () => `${queue} has ${changed.length === 1 ? "the new option" : "the new options"}.`,
  };
}

export function clearQueue(queue: string, messages: number): Act {
  return {
    title: `Clear the queue ${queue}`,
    verb: "Clear",
    says: `All its messages (${count(messages)}) are deleted for good, delivered or not. Options, groups and dead letters stay.`,
    method: "DELETE",
    path: path("queues", queue, "clear"),
    role: "admin",
    danger: true,
    python: `queen.admin.clear_queue(${literal(queue)})`,
    queen: `queue clear ${quote(queue)} --yes`,
    tell: (answer: { deleted: number }) => `${several(answer.deleted, "message")} deleted.`,
  };
}

export function deleteQueue(queue: string, messages: number): Act {
  return {
    title: `Delete the queue ${queue}`,
    verb: "Delete",
    says: `The queue, its messages (${count(messages)}), the progress of its groups and its dead letters are deleted for good.`,
    method: "DELETE",
    path: path("resources", "queues", queue),
    role: "admin",
    danger: true,
    python: `queen.admin.delete_queue(${literal(queue)})`,
    queen: `queue delete ${quote(queue)} --yes`,
    tell: () => `${queue} is deleted.`,
  };
}

export interface Place {
  /** An ISO moment, or the two ends. */
  to: string | "beginning" | "end";
  partition?: string;
}

interface Sought {
  affected?: number;
  partitionsUpdated: number;
}

export function seek(group: string, queue: string, place: Place): Act {
  const body =
    place.to === "end" ? { toEnd: true } : { timestamp: place.to === "beginning" ? "1970-01-01T00:00:00Z" : place.to };
  const where = place.partition ? ["partitions", place.partition] : [];
  return {
    title: `Move ${group} in ${queue}`,
    verb: "Move",
    says:
      `The group goes to ${wordsOf(place.to)}${place.partition ? ` in partition ${place.partition}` : ""}. Back: messages come again. ` +
      "Forward: those in between are not delivered to it. Leases that are out become void.",
    method: "POST",
    path: path("consumer-groups", group, "queues", queue, ...where, "seek"),
    body,
    role: "read-write",
    danger: true,
    python: `queen.admin.seek(${literal(group)}, ${literal(queue)}, ${literal(place.to)}${named({ partition: place.partition })})`,
    queen: `group seek ${quote(group)} --queue ${quote(queue)} --to ${quote(place.to)}${flags({ partition: place.partition })} --yes`,
    preview: {
      body: { ...body, dryRun: true },
      tell: (answer: Sought) => `This moves it over ${several(answer.affected ?? 0, "message")}.`,
    },
    tell: (answer: Sought) => `${group} was moved in ${several(answer.partitionsUpdated, "partition")}.`,
  };
}

function wordsOf(to: string): string {
  if (to === "beginning") return "the first message";
  return to === "end" ? "the end: only what comes from now on" : `what was stored from ${to} on`;
}

export function replayFrom(
  group: string,
  message: { id: string; queue: string; partition: string; createdAt: string },
): Act {
  const { queue, partition } = message;
  return {
    ...seek(group, queue, { to: message.createdAt, partition }),
    title: `Replay from here for ${group}`,
    verb: "Replay",
    says:
      `The group goes back (or forward) to this message in partition ${partition}: this one and all after it come again. ` +
      "Other partitions stay where they are. Leases of that partition become void.",
    body: { messageId: message.id },
    python: `queen.admin.seek(${literal(group)}, ${literal(queue)}${named({ partition, message_id: message.id })})`,
    queen: null, // it seeks by time, and messages of one batch share theirs
    preview: {
      body: { messageId: message.id, dryRun: true },
      tell: (answer: Sought) => `This moves it over ${several(answer.affected ?? 0, "message")}.`,
    },
  };
}

export function deleteGroup(group: string, queue?: string): Act {
  return {
    title: queue ? `Forget ${group} in ${queue}` : `Delete the group ${group}`,
    verb: "Delete",
    says: `The group's progress${queue ? ` in ${queue}` : " in every queue"} is deleted. If it pops again, it starts anew, as a group nobody knows. Messages stay.`,
    method: "DELETE",
    path: queue ? path("consumer-groups", group, "queues", queue) : path("consumer-groups", group),
    role: "admin",
    danger: true,
    python: `queen.admin.delete_group(${literal(group)}${named({ queue })})`,
    queen: `group delete ${quote(group)}${flags({ queue })} --yes`,
    tell: () => `${group} is forgotten${queue ? ` in ${queue}` : ""}.`,
  };
}

export function deleteMessage(partitionId: string, transactionId: string): Act {
  return {
    title: "Delete this message",
    verb: "Delete",
    says: "The message is deleted for good. Groups that have not had it will not get it.",
    method: "DELETE",
    path: path("messages", partitionId, transactionId),
    role: "read-write",
    danger: true,
    python: `queen.admin.delete_message(${literal(partitionId)}, ${literal(transactionId)})`,
    queen: null,
    tell: () => "The message is deleted.",
  };
}

export function buryMessage(partitionId: string, transactionId: string, group?: string): Act {
  const body = { ...(group ? { consumerGroup: group } : {}), error: "moved by hand" };
  return {
    title: "Move this message to the dead letters",
    verb: "Move",
    says: `${group ? `The group ${group}` : "Every group that has not completed it"} gives the message up: it goes to the dead letters, and the partition goes on with the next.`,
    method: "POST",
    path: path("messages", partitionId, transactionId, "dlq"),
    body,
    role: "read-write",
    danger: true,
    python: `queen.admin.dead_letter_message(${literal(partitionId)}, ${literal(transactionId)}${named({ group })}, error="moved by hand")`,
    queen: null,
    tell: (answer: { consumerGroups: string[] }) => `Moved for ${answer.consumerGroups.join(", ") || "no group"}.`,
  };
}

export function seekStream(stream: string, group: string, to: string): Act {
  const timestamp = to === "beginning" ? "1970-01-01T00:00:00Z" : to;
  return {
    title: `Move ${group} in ${stream}`,
    verb: "Move",
    says: `The group goes to the windows from ${to === "beginning" ? "the first" : to} on. Windows come again as they were, with the same messages. Leases that are out become void.`,
    method: "POST",
    path: path("stream", "seek"),
    body: { streamName: stream, consumerGroup: group, timestamp },
    role: "read-write",
    danger: true,
    python: `queen.stream(${literal(stream)}).seek(${literal(group)}, ${literal(timestamp)})`,
    queen: `stream seek ${quote(stream)} --group ${quote(group)} --to ${quote(to)} --yes`,
    tell: () => `${group} was moved.`,
  };
}

export function deleteStream(stream: string): Act {
  return {
    title: `Delete the stream ${stream}`,
    verb: "Delete",
    says: "The stream with its windows and the progress of its groups is deleted for good. The queues it reads stay as they are.",
    method: "DELETE",
    path: path("resources", "streams", stream),
    role: "admin",
    danger: true,
    python: `queen.admin.delete_stream(${literal(stream)})`,
    queen: `stream delete ${quote(stream)} --yes`,
    tell: () => `${stream} is deleted.`,
  };
}

export function retryLetter(id: string, payload?: unknown): Act {
  const edited = payload !== undefined;
  return {
    title: `Retry dead letter ${id}`,
    verb: "Retry",
    says: `A new message${edited ? ", with the payload as edited," : ""} is stored at the end of its partition, for the group that failed and no other. The dead letter is gone then.`,
    method: "POST",
    path: path("dlq", id, "retry"),
    body: edited ? { payload } : {},
    role: "read-write",
    python: `queen.admin.retry_dead_letter(${literal(id)}${edited ? `, payload=${literal(payload)}` : ""})`,
    queen: `dlq retry ${quote(id)}${edited ? ` --payload ${quote(JSON.stringify(payload))}` : ""}`,
    tell: () => "It is a message again.",
  };
}

export function deleteLetter(id: string): Act {
  return {
    title: `Delete dead letter ${id}`,
    verb: "Delete",
    says: "The dead letter is deleted for good. Nobody will get this message again.",
    method: "DELETE",
    path: path("dlq", id),
    role: "read-write",
    danger: true,
    python: `queen.admin.delete_dead_letter(${literal(id)})`,
    queen: `dlq delete ${quote(id)} --yes`,
    tell: () => "The dead letter is deleted.",
  };
}

/** Which dead letters: those of one queue, narrowed. */
export interface Letters {
  queue: string;
  consumerGroup?: string;
  /** As `/api/v1/dlq/errors` gives it: numbers and ids in the error are #. */
  errorPattern?: string;
}

const MOST_LETTERS = 10_000;

export function lettersAct(what: "retry" | "delete", which: Letters, total: number): Act {
  const body = { ...which, limit: MOST_LETTERS };
  const retry = what === "retry";
  const alike = which.errorPattern !== undefined;
  const told = named({ group: which.consumerGroup, error_pattern: which.errorPattern });
  return {
    title: `${retry ? "Retry" : "Delete"} ${several(total, "dead letter")} of ${which.queue}`,
    verb: retry ? "Retry all" : "Delete all",
    says:
      (retry
        ? "Each becomes a new message at the end of its partition, for the group that failed and no other."
        : "They are deleted for good. Nobody will get these messages again.") +
      `${alike ? " Those whose error is alike are meant, also if more have come since." : ""} Up to ${count(MOST_LETTERS)} at once.`,
    method: "POST",
    path: path("dlq", what),
    body,
    role: "read-write",
    danger: !retry,
    python: `queen.admin.${what}_dead_letters(${literal(which.queue)}${told}, limit=${MOST_LETTERS})`,
    queen: alike
      ? null
      : `dlq ${what} --queue ${quote(which.queue)}${flags({ group: which.consumerGroup })} --all${retry ? "" : " --yes"}`,
    tell: (answer: { retried?: number; deleted?: number }) =>
      retry
        ? `${several(answer.retried ?? 0, "message")} on the way again.`
        : `${several(answer.deleted ?? 0, "dead letter")} deleted.`,
  };
}

export function forgetPipeline(pipeline: string): Act {
  return {
    title: `Forget the pipeline ${pipeline}`,
    verb: "Forget",
    says: "What its runs told the broker is deleted. Its checkpoint and its results stay; a run that is alive tells again.",
    method: "DELETE",
    path: path("pipelines", pipeline),
    role: "admin",
    danger: true,
    python: `queen.admin.delete_pipeline(${literal(pipeline)})`,
    queen: null,
    tell: () => `${pipeline} is forgotten.`,
  };
}

export function maintenance(kind: "all" | "pop", enabled: boolean): Act {
  const what = kind === "all" ? "Maintenance" : "Pause of deliveries";
  const effect =
    kind === "all"
      ? "On every broker: messages are accepted and kept, none is delivered and none is deleted, until it is turned off."
      : "On every broker: messages are accepted, none is delivered, until it is turned off.";
  return {
    title: `${what}: ${enabled ? "turn on" : "turn off"}`,
    verb: enabled ? "Turn on" : "Turn off",
    says: enabled ? effect : "Work goes on at once, on every broker.",
    method: "POST",
    path: kind === "all" ? path("system", "maintenance") : path("system", "maintenance", "pop"),
    body: { enabled },
    role: "admin",
    danger: enabled,
    python: `queen.admin.set_${kind === "all" ? "" : "pop_"}maintenance(${literal(enabled)})`,
    queen: null,
    tell: () => `${what} is ${enabled ? "on" : "off"}.`,
  };
}
