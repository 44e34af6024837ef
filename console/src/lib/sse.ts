/** Server-sent events out of a `fetch`: `EventSource` cannot send a token. */

export interface ServerEvent {
  event: string;
  data: string;
}

/** Takes text as it arrives, gives the events that are whole. Comments and fields we do not use are passed over. */
export class EventParser {
  #rest = "";

  take(text: string): ServerEvent[] {
    const blocks = (this.#rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.#rest = blocks.pop()!;
    return blocks.map(read).filter((each) => each.data !== "");
  }
}

function read(block: string): ServerEvent {
  const found: ServerEvent = { event: "message", data: "" };
  const lines: string[] = [];
  for (const line of block.split("\n")) {
    const [name, value] = split(line);
    if (name === "event") found.event = value;
    else if (name === "data") lines.push(value);
  }
  return { ...found, data: lines.join("\n") };
}

function split(line: string): [string, string] {
  const colon = line.indexOf(":");
  if (colon < 0) return [line, ""];
  return [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
}

/** Call `told` for each event until the stream ends or breaks. */
export async function follow(body: ReadableStream<Uint8Array>, told: (event: ServerEvent) => void): Promise<void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of parser.take(decoder.decode(value, { stream: true }))) told(event);
  }
}
