/** Which component shows which page; each is loaded when it is first opened. */

import type { Component } from "svelte";
import type { PageName } from "./routes";

type Loader = () => Promise<{ default: Component<Record<string, string>> }>;

const load = (loader: () => Promise<unknown>) => loader as Loader;

export const PAGES: Record<PageName, Loader> = {
  overview: load(() => import("../pages/Overview.svelte")),
  queues: load(() => import("../pages/Queues.svelte")),
  queue: load(() => import("../pages/Queue.svelte")),
  message: load(() => import("../pages/Message.svelte")),
  groups: load(() => import("../pages/Groups.svelte")),
  group: load(() => import("../pages/Group.svelte")),
  streams: load(() => import("../pages/Streams.svelte")),
  stream: load(() => import("../pages/Stream.svelte")),
  letters: load(() => import("../pages/Letters.svelte")),
  letter: load(() => import("../pages/Letter.svelte")),
  pipelines: load(() => import("../pages/Pipelines.svelte")),
  pipeline: load(() => import("../pages/Pipeline.svelte")),
  analytics: load(() => import("../pages/Analytics.svelte")),
  system: load(() => import("../pages/System.svelte")),
};

export interface Section {
  name: string;
  href: string;
  pages: PageName[];
}

export const SECTIONS: Section[] = [
  { name: "Overview", href: "/", pages: ["overview"] },
  { name: "Queues", href: "/queues", pages: ["queues", "queue", "message"] },
  { name: "Consumer groups", href: "/groups", pages: ["groups", "group"] },
  { name: "Streams", href: "/streams", pages: ["streams", "stream"] },
  { name: "Dead letters", href: "/dead-letters", pages: ["letters", "letter"] },
  { name: "Pipelines", href: "/pipelines", pages: ["pipelines", "pipeline"] },
  { name: "Analytics", href: "/analytics", pages: ["analytics"] },
  { name: "System", href: "/system", pages: ["system"] },
];

export function sectionOf(page: PageName): Section {
  return SECTIONS.find((section) => section.pages.includes(page))!;
}
