/** What scrolls can be reached by keyboard; what has room enough is no stop on the way. `<div {@attach reachable}>`. */
export function reachable(node: HTMLElement): () => void {
  const look = () => {
    const scrolls = node.scrollWidth > node.clientWidth || node.scrollHeight > node.clientHeight;
    if (scrolls) node.tabIndex = 0;
    else node.removeAttribute("tabindex");
  };
  const sizes = new ResizeObserver(look);
  sizes.observe(node);
  if (node.firstElementChild) sizes.observe(node.firstElementChild); // its own size stays when what is in it grows
  return () => sizes.disconnect();
}
