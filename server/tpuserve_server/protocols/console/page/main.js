// Connects the views with the server's status, its events and the form.
import { ControlDialog } from "./control_dialog.js";
import { Feed } from "./feed.js";
import { LiveView } from "./live_view.js";
import { ModelsView } from "./models_view.js";
import { RecentSnapshots } from "./recent_snapshots.js";
import { EVENTS, readStatus, readUnloaded } from "./server_api.js";
import { ServerView } from "./server_view.js";
import { SlowView } from "./slow_view.js";
import { StatusView } from "./status_view.js";
import { TryForm } from "./try_form.js";

const recent = new RecentSnapshots();
const statusView = new StatusView(document);
const liveView = new LiveView(document, recent);
const dialog = new ControlDialog(document);
const tryForm = new TryForm(document);
const modelsView = new ModelsView(
  document,
  (model, action) => dialog.ask(model, action),
  (model, version) => tryForm.choose(model, version),
);
const slowView = new SlowView(document);
const serverView = new ServerView(document);
let status = null;
let unloaded = [];
let isReading = false;
let isOutdated = false;

// Reads the status once more if it changes meanwhile.
async function refresh() {
  isOutdated = true;
  if (isReading) return;
  isReading = true;
  try {
    while (isOutdated) {
      isOutdated = false;
      status = await readStatus();
      unloaded = status.may_control ? await readUnloaded(status) : [];
      show();
    }
  } catch (error) {
    // The feed shows a lost connection, and begins again with an event for the models.
    console.warn(`Cannot read the status. ${error.message}`);
  } finally {
    isReading = false;
  }
}

function show() {
  statusView.show(status, recent.newest);
  modelsView.show(status, unloaded);
  serverView.show(status);
  tryForm.show(status);
}

// A file that misses its place must not replace the page.
for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());

// A new stream begins with all three events.
new Feed(EVENTS, {
  connected: () => statusView.connected(),
  lost: () => statusView.lost(),
  models: refresh,
  slow: (list) => slowView.show(list),
  snapshot(snapshot) {
    recent.add(snapshot);
    liveView.show();
    if (status) statusView.show(status, snapshot);
    if (status?.server.state !== snapshot.state) refresh();
  },
}).start();
