/**
 * Makes an element that scrolls a named stop of the Tab key, so that the keyboard can scroll it:
 * `<div class="scroll" {@attach scrollRegion("Tables")}>`. It is one whether or not its content overflows now, since
 * the content, the window and the fonts change.
 */
export function scrollRegion(label: string): (node: HTMLElement) => void {
  return (node) => {
    node.tabIndex = 0;
    node.setAttribute("role", "region");
    node.setAttribute("aria-label", label);
  };
}
