/** Where the reader is: the address bar as state. Links are plain `<a href>`; a click on one stays in the page. */

import { href, match, type Found } from "./routes";

class Router {
  path = $state(location.pathname);
  search = $state(location.search);
  #typing: ReturnType<typeof setTimeout> | undefined;
  #query = $derived(new URLSearchParams(this.search));
  found: Found | null = $derived(match(this.path));

  /** A parameter of the address's query, "" when it is not there. */
  query(name: string): string {
    return this.#query.get(name) ?? "";
  }

  go(address: string): void {
    if (address === location.pathname + location.search) return;
    history.pushState(null, "", address);
    this.#read();
    window.scrollTo(0, 0);
  }

  /** Write filters into the address, so that it can be passed on; no entry of its own in the history. */
  set(query: Record<string, string | null>): void {
    const merged = { ...Object.fromEntries(this.#query), ...query };
    const segments = this.path.split("/").filter(Boolean).map(decodeURIComponent);
    history.replaceState(null, "", href(segments, merged));
    this.#read();
  }

  /** The same for what is being typed: once the typing pauses. */
  type(query: Record<string, string | null>): void {
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => this.set(query), 200);
  }

  #read(): void {
    this.path = location.pathname;
    this.search = location.search;
  }

  listen(): () => void {
    const popped = () => this.#read();
    const clicked = (event: MouseEvent) => {
      const link = (event.target as Element | null)?.closest?.("a");
      const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
      if (!link || !plain || event.defaultPrevented || link.target || link.origin !== location.origin) return;
      if (!match(link.pathname)) return;
      event.preventDefault();
      this.go(link.pathname + link.search);
    };
    addEventListener("popstate", popped);
    document.addEventListener("click", clicked);
    return () => {
      removeEventListener("popstate", popped);
      document.removeEventListener("click", clicked);
    };
  }
}

export const router = new Router();
