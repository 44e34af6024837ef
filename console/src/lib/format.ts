/** Numbers, times and sizes as people read them. Pure; units always said. */

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** 1234567 → "1,234,567"; nothing known: "–". */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : whole.format(value);
}

/** 1234567 → "1.2M", for axes and tiles. */
export function compact(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 10_000 ? trim(value) : short.format(value);
}

function trim(value: number): string {
  if (Number.isInteger(value)) return whole.format(value);
  return Math.abs(value) >= 100 ? whole.format(value) : String(Number(value.toFixed(Math.abs(value) >= 10 ? 1 : 2)));
}

/** Per second: 0.04 → "0.04/s", 1234.5 → "1,235/s". */
export function rate(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${compact(value)}/s`;
}

/** Seconds as a duration: 0.004 → "4 ms", 3.21 → "3.2 s", 200 → "3 min 20 s". */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.0995) return `${trim(seconds * 1000)} ms`;
  if (size < 59.95) return `${Number(seconds.toFixed(1))} s`;
  const units: [number, string][] = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const rounded = Math.round(size);
  const first = units.findIndex(([length]) => rounded >= length);
  const [length, name] = units[first]!;
  const rest = units[first + 1];
  const more = rest ? Math.floor((rounded % length) / rest[0]) : 0;
  const text = `${Math.floor(rounded / length)} ${name}` + (rest && more ? ` ${more} ${rest[1]}` : "");
  return seconds < 0 ? `-${text}` : text;
}

export function milliseconds(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : duration(value / 1000);
}

/** Bytes: 9623231 → "9.2 MiB". */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? size : trim(size)} ${units[unit]}`;
}

export function percent(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${Number(value.toFixed(value < 10 ? 2 : 1))} %`;
}

/** A share of 0 to 1: 0.004 → "0 %", 0.25 → "25 %". */
export function share(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`;
}

/** A moment in local time: "11:01:05" today, else with its date. */
export function moment(iso: string | null | undefined, now = new Date()): string {
  if (!iso) return "–";
  const time = new Date(iso);
  if (Number.isNaN(time.getTime())) return iso;
  const clock = time.toLocaleTimeString("en-GB");
  if (time.toDateString() === now.toDateString()) return clock;
  const pad = (value: number) => String(value).padStart(2, "0");
  return `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())} ${clock}`;
}

/** How long ago: "12 s ago", "in 5 s". */
export function ago(iso: string | null | undefined, now = Date.now()): string {
  if (!iso) return "never";
  const seconds = (now - new Date(iso).getTime()) / 1000;
  if (Math.abs(seconds) < 1) return "just now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

/** "1 message", "3 messages". */
export function several(number: number, noun: string): string {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
