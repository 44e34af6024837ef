/** Which rows of a long list are in sight, and how much space those above and below take. */

const MARGIN = 4; // rows beyond the edges: a quick wheel finds them there

export interface Shown {
  from: number;
  to: number;
  before: number;
  after: number;
}

export function slice(rows: number, rowHeight: number, top: number, height: number): Shown {
  const first = Math.min(Math.floor(top / rowHeight), Math.max(0, rows - 1));
  const from = Math.max(0, first - MARGIN);
  const to = Math.min(rows, first + Math.ceil(height / rowHeight) + MARGIN);
  return { from, to, before: from * rowHeight, after: (rows - to) * rowHeight };
}
