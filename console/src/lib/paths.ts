/** Addresses of the API. */

export type Query = Record<string, string | number | boolean | null | undefined>;

/** A path with its query; what is empty is left out. */
export function address(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return search ? `${path}?${search}` : path;
}

/** `api/v1/…` of these segments, each encoded. */
export function path(...segments: string[]): string {
  return "/api/v1/" + segments.map(encodeURIComponent).join("/");
}
