/** What the palette shows for what was typed. */

export interface Entry {
  kind: string;
  name: string;
  href: string;
}

/** Those whose name holds the letters in their order; whole words at the start first, then nearer together. */
export function rank(typed: string, entries: Entry[]): Entry[] {
  const wanted = typed.trim().toLowerCase();
  if (!wanted) return entries;
  return entries
    .map((entry) => ({ entry, cost: cost(wanted, entry.name.toLowerCase()) }))
    .filter(({ cost }) => cost !== null)
    .sort((one, other) => one.cost! - other.cost!)
    .map(({ entry }) => entry);
}

function cost(wanted: string, name: string): number | null {
  const whole = name.indexOf(wanted);
  if (whole >= 0) return whole === 0 ? 0 : 1 + whole / 1000;
  let at = -1;
  let gaps = 0;
  for (const letter of wanted) {
    const next = name.indexOf(letter, at + 1);
    if (next < 0) return null;
    gaps += next - at - 1;
    at = next;
  }
  return 10 + gaps;
}
