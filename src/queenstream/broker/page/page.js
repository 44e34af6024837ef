// The overview: a client of the public API. Payloads and names are shown as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
const PERIOD_MS = 2000;

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const response = await fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (response.status === 401 || response.status === 403) {
    at("signin").hidden = false;
    throw new Error((await response.json()).error);
  }
  if (!response.ok) throw new Error((await response.json()).error);
  at("signin").hidden = true;
  return response.json();
}

function figure(name, value) {
  const box = document.createElement("div");
  const label = document.createElement("dt");
  const number = document.createElement("dd");
  label.textContent = name;
  number.textContent = Number(value).toLocaleString();
  box.append(label, number);
  return box;
}

function row(queue) {
  const line = document.createElement("tr");
  const counts = queue.messages;
  const cells = [queue.name, queue.namespace, queue.partitions, counts.pending, counts.processing, counts.deadLetter];
  for (const value of cells) {
    const cell = document.createElement("td");
    cell.textContent = typeof value === "number" ? value.toLocaleString() : value;
    line.append(cell);
  }
  return line;
}

async function refresh() {
  if (document.hidden) return;
  try {
    const [overview, list] = await Promise.all([
      ask("/api/v1/resources/overview"),
      ask("/api/v1/resources/queues?limit=200"),
    ]);
    at("figures").replaceChildren(
      figure("queues", overview.queues),
      figure("partitions", overview.partitions),
      figure("groups", overview.consumerGroups),
      figure("pending", overview.messages.pending),
      figure("leases out", overview.leases),
      figure("dead letters", overview.messages.deadLetter),
      figure("pushed this minute", overview.throughput.pushed),
      figure("acked this minute", overview.throughput.acked),
    );
    at("queues").replaceChildren(...list.queues.map(row));
    at("empty").hidden = list.queues.length > 0;
    at("state").className = "";
    at("state").textContent = `live, ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    at("state").className = "bad";
    at("state").textContent = error.message;
  }
}

at("try").textContent =
  `curl -s ${location.origin}/api/v1/push -d '{"items":[{"queue":"orders","payload":{"hello":"world"}}]}'`;
at("signin").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value.trim());
  at("token").value = "";
  refresh();
});
document.addEventListener("visibilitychange", refresh);
refresh();
setInterval(refresh, PERIOD_MS);
