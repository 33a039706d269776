// The server's events, with reconnection. A browser reconnects after the end of a stream, but not after an HTTP error.
// The server ends long streams, so only silence is a lost connection.
import { parse } from "./exact_json.js";

const SILENCE_MS = 4000;
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 5000;

export class Feed {
  // `handlers` has a function for each event, with its data, and `connected` and `lost`.
  constructor(url, handlers) {
    this.url = url;
    this.handlers = handlers;
    this.delayMs = FIRST_DELAY_MS;
    this.isLost = false;
    this.heardMs = performance.now();
    this.source = null;
    this.retry = 0;
  }

  start() {
    this.open();
    // The browser may keep a page that the user leaves, with its connection, and has only six for each server.
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
    setInterval(() => performance.now() - this.heardMs > SILENCE_MS && this.lose(), 1000);
  }

  open() {
    const source = (this.source = new EventSource(this.url));
    source.addEventListener("open", () => this.connect());
    for (const name of ["snapshot", "models", "slow"]) {
      source.addEventListener(name, (event) => this.receive(name, event.data));
    }
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return;
      this.retry = setTimeout(() => this.open(), this.delayMs);
      this.delayMs = Math.min(this.delayMs * 2, LONGEST_DELAY_MS);
    });
  }

  close() {
    clearTimeout(this.retry);
    this.source.close();
  }

  connect() {
    this.heardMs = performance.now();
    this.delayMs = FIRST_DELAY_MS;
    this.isLost = false;
    this.handlers.connected();
  }

  receive(name, data) {
    if (this.isLost) this.connect(); // only a pause
    this.heardMs = performance.now();
    this.handlers[name](parse(data));
  }

  lose() {
    if (this.isLost) return;
    this.isLost = true;
    this.handlers.lost();
  }
}
