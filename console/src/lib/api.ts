/** The broker's HTTP API. Every failure becomes an `ApiError` whose message says, in words, what is wrong. */

import { parse } from "./json";
import { address, type Query } from "./paths";
import { session } from "./session.svelte";

export { path } from "./paths";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

export function headers(): Record<string, string> {
  return session.token ? { Authorization: `Bearer ${session.token}` } : {};
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return ask<T>("GET", address(path, query), undefined, signal);
}

export async function ask<T>(method: string, address: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const init: RequestInit = { method, headers: headers() };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { ...headers(), "Content-Type": "application/json" };
  }
  const response = await reach(address, init);
  if (response.ok) return (response.status === 204 ? null : parse(await response.text())) as T;
  throw await refusal(response);
}

/** fetch, where a broker that is away is told in words. */
export async function reach(address: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(address, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The broker does not answer. Is it running, and is the network there? Trying again.", 0);
  }
}

export async function refusal(response: Response): Promise<ApiError> {
  let said = "";
  try {
    said = ((await response.json()) as { error?: string }).error ?? "";
  } catch {
    // No JSON: something between us and the broker has answered.
  }
  if (response.status === 401) session.refused = session.token ? said || "The token was refused." : "";
  return new ApiError(said || `The broker answered ${response.status} ${response.statusText}.`, response.status);
}
