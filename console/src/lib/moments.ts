/** Between what a date field holds (local time, no zone) and what the API takes (UTC). */

/** "2026-11-16T12:00" here → ISO in UTC; "" for what is no time. */
export function instant(text: string): string {
  if (!text) return "";
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? "" : time.toISOString();
}

/** What a date field shows for a time in the address: as it is, or out of ISO in UTC. */
export function local(text: string): string {
  if (!text.endsWith("Z")) return text;
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return "";
  const pad = (value: number) => String(value).padStart(2, "0");
  const date = `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())}`;
  return `${date}T${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}`;
}
