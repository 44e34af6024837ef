/** Whether anybody can see the page: what is hidden asks the broker for nothing. */

class Visible {
  now = $state(!document.hidden);
}

export const visible = new Visible();

document.addEventListener("visibilitychange", () => (visible.now = !document.hidden));
