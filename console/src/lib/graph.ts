/** A plan as a picture: which column and row each step gets, and the lines between them. Pure arithmetic. */

export interface GraphNode {
  name: string;
  inputs: string[];
}

export interface Placed<T extends GraphNode> {
  node: T;
  x: number;
  y: number;
}

export interface Edge {
  from: string;
  to: string;
  path: string;
}

export interface Drawing<T extends GraphNode> {
  placed: Placed<T>[];
  edges: Edge[];
  width: number;
  height: number;
}

export const BOX = { width: 204, height: 120, across: 40, down: 18 };

/** Sources left, sinks right; a step stands one column behind the furthest of its inputs, near to their rows. */
export function layout<T extends GraphNode>(nodes: T[]): Drawing<T> {
  const known = new Map(nodes.map((node) => [node.name, node]));
  const column = new Map<string, number>();
  const depth = (node: T, seen: Set<string>): number => {
    const had = column.get(node.name);
    if (had !== undefined) return had;
    if (seen.has(node.name)) return 0; // a plan has no circles; a broken report must not hang the page
    seen.add(node.name);
    const inputs = node.inputs.map((name) => known.get(name)).filter((each) => each !== undefined);
    const found = inputs.length ? 1 + Math.max(...inputs.map((each) => depth(each, seen))) : 0;
    column.set(node.name, found);
    return found;
  };
  for (const node of nodes) depth(node, new Set());

  const row = new Map<string, number>();
  const columns: T[][] = [];
  for (const node of nodes) (columns[column.get(node.name)!] ??= []).push(node);
  for (const members of columns.filter(Boolean)) {
    const wanted = (node: T) => mean(node.inputs.flatMap((name) => row.get(name) ?? []));
    let next = 0;
    for (const node of [...members].sort((one, other) => wanted(one) - wanted(other))) {
      const at = Math.max(next, wanted(node));
      row.set(node.name, at);
      next = at + 1;
    }
  }
  const placed = nodes.map((node) => ({
    node,
    x: column.get(node.name)! * (BOX.width + BOX.across),
    y: row.get(node.name)! * (BOX.height + BOX.down),
  }));
  return { placed, edges: edges(placed), ...size(placed) };
}

function mean(values: number[]): number {
  return values.length ? values.reduce((sum, each) => sum + each, 0) / values.length : 0;
}

function size(placed: Placed<GraphNode>[]): { width: number; height: number } {
  return {
    width: Math.max(0, ...placed.map(({ x }) => x + BOX.width)),
    height: Math.max(0, ...placed.map(({ y }) => y + BOX.height)),
  };
}

function edges(placed: Placed<GraphNode>[]): Edge[] {
  const at = new Map(placed.map((each) => [each.node.name, each]));
  return placed.flatMap(({ node, x, y }) =>
    node.inputs.flatMap((name) => {
      const from = at.get(name);
      if (!from) return [];
      const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, x, y + BOX.height / 2];
      const bend = (x2 - x1) / 2;
      return [{ from: name, to: node.name, path: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }];
    }),
  );
}
