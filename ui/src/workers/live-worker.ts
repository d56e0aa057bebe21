/** The shared worker: one LiveHub for all tabs of this browser. */
import { LiveHub } from "./live-hub";
import type { FromTab } from "./live-protocol";

const hub = new LiveHub();

(self as unknown as SharedWorkerGlobalScope).onconnect = (event) => {
  const port = event.ports[0];
  if (!port) return;
  const receive = hub.connect((message) => port.postMessage(message));
  port.onmessage = (message: MessageEvent<FromTab>) => receive(message.data);
};
