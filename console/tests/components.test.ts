// @vitest-environment jsdom
import { render } from "@testing-library/svelte";
import { createRawSnippet } from "svelte";
import { describe, expect, it } from "vitest";
import Json from "../src/components/Json.svelte";
import Table from "../src/components/Table.svelte";

// jsdom lays nothing out, so it has none; the sizes that Table assumes at first stay.
globalThis.ResizeObserver ??= class {
  observe() {}
  unobserve() {}
  disconnect() {}
};

describe("components", () => {
  it("shows a payload as text, whatever it holds", () => {
    const hostile = "<img src=x onerror=alert(1)><script>alert(1)</script>";
    const { container } = render(Json, { value: { html: hostile } });
    expect(container.querySelector("img, script")).toBeNull();
    expect(container.textContent).toContain(JSON.stringify(hostile));
  });

  it("keeps only the rows in sight of ten thousand", () => {
    const rows = Array.from({ length: 10_000 }, (_each, index) => ({ id: String(index) }));
    const row = createRawSnippet<[{ id: string }]>((each) => ({ render: () => `<td>${each().id}</td>` }));
    const { container, getByRole } = render(Table<{ id: string }>, {
      label: "Rows",
      rows,
      columns: [{ name: "id" }],
      row,
      key: (each: { id: string }) => each.id,
    });
    expect(getByRole("table").getAttribute("aria-rowcount")).toBe("10001");
    expect(container.querySelectorAll("tbody tr:not(.gap)").length).toBeLessThan(60);
  });
});
