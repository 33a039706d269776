// The server itself: devices, memory budgets, flags and versions of its packages.
import { element, replace } from "./element.js";
import { bytes, seconds } from "./figures.js";

// Some budgets limit each request, and have no common use.
function budgetText({ in_use_bytes: inUse, limit_bytes: limit }) {
  const most = limit === null ? "no limit" : bytes(limit);
  return inUse === null ? `${most} for each request` : `${bytes(inUse)} of ${most}`;
}

export class ServerView {
  constructor(document) {
    this.content = document.getElementById("server-facts");
  }

  show(status) {
    const { server } = status;
    const started = new Date(server.started_unix_s * 1000);
    replace(
      this.content,
      group("Process", [
        ...addressRows(server.addresses),
        ...certificateRows(server.certificates),
        ["process id", String(server.pid)],
        ["Python", server.python],
        ["started", started.toLocaleString([], { hour12: false })],
      ]),
      group("Devices", status.devices.map((device) => [device.name, deviceText(device)])),
      group("Memory budgets", status.budgets.map((budget) => [budget.name, budgetText(budget)])),
      group("Flags that differ from their defaults", status.flags.map((flag) => [flag.name, flagText(flag)])),
      element(
        "div",
        null,
        element("h3", null, "Packages"),
        element("p", null, Object.entries(status.build).map((pair) => pair.join(" ")).join(" · ")),
      ),
    );
  }
}

function group(title, rows) {
  if (!rows.length) return null;
  return element(
    "div",
    null,
    element("h3", null, title),
    element("dl", null, rows.map(([name, value]) => [element("dt", null, name), element("dd", null, value)])),
  );
}

function addressRows({ grpc, rest, grpc_socket: socket, tls }) {
  const rows = [["gRPC", grpc], ["gRPC", socket], ["REST", rest]].filter(([, address]) => address);
  return rows.map(([name, address]) => [name, tls ? `${address} with TLS` : address]);
}

function certificateRows(certificates) {
  const written = (end) => `expires ${new Date(end * 1000).toLocaleString([], { hour12: false })}`;
  return Object.entries(certificates?.expires_unix_s ?? {}).map(([name, end]) => [
    name === "server" ? "certificate" : "authority of clients",
    written(end),
  ]);
}

function deviceText(device) {
  const memory = device.memory_bytes;
  const parts = [`busy for ${seconds(device.busy_s)}`];
  for (const [name, size] of Object.entries(memory)) parts.push(`memory ${name.replace("_", " ")} ${bytes(size)}`);
  return parts.join("; ");
}

function flagText(flag) {
  const write = (value) => (value === null ? "unset" : typeof value === "string" ? value : JSON.stringify(value));
  return flag.value === undefined ? "set" : `${write(flag.value)} (default ${write(flag.default)})`;
}
