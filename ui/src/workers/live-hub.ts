/**
 * One event stream for all tabs of a browser: browsers open at most six connections to a server over HTTP/1.1, so a
 * stream per tab would stop the seventh tab. Tabs register the topics that they show; the stream has all of them.
 */
import { changesOf, type Frame, type FromTab, type ToTab, topicsOf } from "./live-protocol";

const RETRY_MS = [500, 1000, 2000, 5000];
const MAX_TOPICS = 64;

function sameItems(a: string[], b: string[]): boolean {
  return a.length === b.length && a.every((item, i) => item === b[i]);
}

interface Tab {
  post: (message: ToTab) => void;
  topics: Set<string>;
}

export class LiveHub {
  private tabs = new Set<Tab>();
  private source: EventSource | null = null;
  private topics: string[] = [];
  /** The id of the last frame: a new stream continues after it, whatever its topics are. */
  private lastId = "";
  private connected = false;
  private failures = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  connect(post: (message: ToTab) => void): (message: FromTab) => void {
    const tab: Tab = { post, topics: new Set() };
    this.tabs.add(tab);
    post({ kind: "status", connected: this.connected });
    return (message) => {
      if ("closed" in message) this.tabs.delete(tab);
      else tab.topics = new Set(message.topics);
      this.schedule(50);
    };
  }

  private schedule(delayMs: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), delayMs);
  }

  /** Open a stream with the topics of all tabs. The old one stays open until then, so that nothing is missed. */
  private refresh(): void {
    const topics = this.allTopics();
    if (this.source && sameItems(topics, this.topics)) return;
    const old = this.source;
    const added = topics.filter((topic) => !this.topics.includes(topic));
    this.source = null;
    this.topics = topics;
    if (topics.length === 0) {
      old?.close();
      return;
    }
    const query = new URLSearchParams(topics.map((topic) => ["topic", topic]));
    if (this.lastId) query.append("after", this.lastId);
    const source = new EventSource(`/api/v1/stream?${query}`);
    this.source = source;
    source.onopen = () => {
      old?.close();
      this.opened(added);
    };
    source.onerror = () => {
      old?.close();
      this.failed(source);
    };
    source.addEventListener("frame", (event) => this.frame(event));
    source.addEventListener("reset", () => this.tell({ kind: "reset" }));
  }

  private allTopics(): string[] {
    const all = new Set<string>();
    for (const tab of this.tabs) for (const topic of tab.topics) all.add(topic);
    return [...all].sort().slice(0, MAX_TOPICS);
  }

  private opened(added: string[]): void {
    const lost = this.failures > 0;
    this.failures = 0;
    this.setConnected(true);
    if (lost) this.tell({ kind: "reset" });
    // Without an id, a page may have fetched the state of a new topic just before the stream began.
    else if (!this.lastId) this.tell({ kind: "frame", topics: added, logs: [], changes: [] });
  }

  private failed(source: EventSource): void {
    if (source !== this.source) return;
    source.close();
    this.source = null;
    this.topics = [];
    this.failures++;
    this.setConnected(false);
    this.schedule(RETRY_MS[Math.min(this.failures - 1, RETRY_MS.length - 1)] ?? 5000);
  }

  private frame(event: MessageEvent<string>): void {
    if (event.lastEventId) this.lastId = event.lastEventId;
    const frame = JSON.parse(event.data) as Frame;
    if (frame.more) this.tell({ kind: "reset" });
    this.tell({ kind: "frame", topics: topicsOf(frame), logs: frame.logs ?? [], changes: changesOf(frame) });
  }

  private setConnected(connected: boolean): void {
    this.connected = connected;
    this.tell({ kind: "status", connected });
  }

  private tell(message: ToTab): void {
    for (const tab of this.tabs) tab.post(message);
  }
}
