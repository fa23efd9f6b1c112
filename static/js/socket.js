// The page's one websocket: subscriptions survive a lost connection and go on from the last seq.
import { setServerNow } from "./words.js";

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15000;
const HIDDEN_MS = 30000;
const SILENT_MS = 25000; // pings come every 10 s
const FAILURES_UNTIL_POLLING = 2; // openings that failed
const FAILURES_WITHIN_MS = 10000;
const SOCKET_AGAIN_MS = 60000; // while polling
const SIGNED_OUT = 4001;
const TOO_MANY = 4029;
const KEEPS_OFFSET = /^(metrics|log):/; // their seq counts what is on disk, so a new server knows it too

class Live extends EventTarget {
  #topics = new Map();
  #socket = null;
  #stream = null;
  #delay = FIRST_DELAY_MS;
  #timer = 0;
  #hiddenTimer = 0;
  #asleep = false;
  #lastMessage = 0;
  #isGreeted = false;
  #failedAt = []; // openings that came to nothing
  #polling = null;
  state = "connecting"; // live, polling, reconnecting, too-many, signed-out

  constructor() {
    super();
    addEventListener("online", () => this.#openNow());
    document.addEventListener("visibilitychange", () => this.#onVisibility());
    addEventListener("pagehide", () => {
      this.#socket?.close();
      this.#polling?.stop();
    });
    addEventListener("pageshow", (event) => event.persisted && this.#openNow());
    setInterval(() => this.#checkSilence(), 5000);
  }

  // handler gets each frame; after a gap it reads over REST and calls resume().
  subscribe(topic, handler, { after = null, sleeps = true } = {}) {
    this.#topics.set(topic, { handler, seq: after, sleeps });
    if (this.#polling) this.#polling.restart();
    else if (!this.#socket) this.#open();
    else this.#ask(topic);
  }

  has(topic) {
    return this.#topics.has(topic);
  }

  unsubscribe(topic) {
    if (this.#topics.delete(topic)) this.send({ op: "unsubscribe", topic });
  }

  resume(topic, seq) {
    const known = this.#topics.get(topic);
    if (!known) return;
    known.seq = seq;
    this.#ask(topic);
  }

  #ask(topic) {
    const known = this.#topics.get(topic);
    if (this.#polling) return; // the next poll takes its seq along
    if (this.#stream && !(this.#asleep && known.sleeps)) this.send({ op: "subscribe", topic, after: known.seq });
  }

  // Whether there was a socket to send it by.
  send(message) {
    const isOpen = this.#socket?.readyState === WebSocket.OPEN;
    if (isOpen) this.#socket.send(JSON.stringify(message));
    return isOpen;
  }

  #open() {
    clearTimeout(this.#timer);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/ws/v1/`);
    this.#socket = socket;
    this.#isGreeted = false;
    this.#lastMessage = Date.now();
    // One that is closing still delivers what was on its way; the next one has asked for that again.
    socket.addEventListener("message", (event) => socket === this.#socket && this.#receive(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => socket === this.#socket && this.#onClose(event));
  }

  #openNow() {
    if (this.#polling || (this.#socket && this.#socket.readyState <= WebSocket.OPEN)) return;
    this.#delay = FIRST_DELAY_MS;
    this.#open();
  }

  #onClose(event) {
    if (event.code === SIGNED_OUT) {
      this.#become("signed-out");
      return;
    }
    if (this.#polling) {
      this.#timer = setTimeout(() => this.#open(), SOCKET_AGAIN_MS);
      return;
    }
    if (event.code === TOO_MANY) {
      this.#become("too-many");
      this.#timer = setTimeout(() => this.#open(), LONGEST_DELAY_MS);
      return;
    }
    if (this.#needsPolling()) this.#poll();
    this.#become("reconnecting");
    const wait = this.#delay * (0.7 + 0.6 * Math.random());
    this.#delay = Math.min(LONGEST_DELAY_MS, this.#delay * 2);
    this.#timer = setTimeout(() => this.#open(), wait);
  }

  #needsPolling() {
    if (this.#isGreeted) return false;
    const now = Date.now();
    this.#failedAt = [...this.#failedAt.filter((at) => now - at < FAILURES_WITHIN_MS), now];
    return this.#failedAt.length >= FAILURES_UNTIL_POLLING;
  }

  async #poll() {
    this.#failedAt = [];
    const { Polling } = await import("./polling.js");
    if (this.#polling || this.state === "live") return;
    this.#polling = new Polling({
      topics: () =>
        [...this.#topics]
          .filter(([, known]) => !known.isRefused && !(this.#asleep && known.sleeps))
          .map(([topic, known]) => [topic, known.seq]),
      stream: () => this.#stream,
      receive: (frame) => this.#receive(frame, "polling"),
      end: (why) => this.#endPolling(why),
    });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), SOCKET_AGAIN_MS);
    this.#polling.start();
  }

  #endPolling(why) {
    this.#polling = null;
    if (why === "signed-out") {
      clearTimeout(this.#timer);
      this.#become("signed-out");
      return;
    }
    this.#become("reconnecting");
    this.#delay = FIRST_DELAY_MS;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), this.#delay);
  }

  #receive(frame, way = "live") {
    this.#lastMessage = Date.now();
    if (frame.type === "hello") return this.#greet(frame.data, way);
    if (frame.type === "ping") return setServerNow(frame.data.now);
    const known = this.#topics.get(frame.topic);
    if (!known) return undefined;
    if (frame.type === "error") {
      known.isRefused = true; // not asked for again by poll, which it would end at once
      return known.handler(frame);
    }
    if ("seq" in frame) {
      if (frame.seq === known.seq && frame.type !== "snapshot") return undefined;
      known.seq = frame.seq;
    }
    this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
    return known.handler(frame);
  }

  #greet({ stream, now }, way) {
    setServerNow(now);
    if (way === "live") {
      this.#isGreeted = true;
      this.#polling?.stop();
      this.#polling = null;
    }
    if (this.#stream !== stream) {
      for (const [topic, known] of this.#topics) if (!KEEPS_OFFSET.test(topic)) known.seq = null;
    }
    this.#stream = stream;
    this.#delay = FIRST_DELAY_MS;
    if (this.state !== way) this.#become(way);
    if (way === "live") for (const topic of this.#topics.keys()) this.#ask(topic);
  }

  #become(state) {
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }

  #onVisibility() {
    clearTimeout(this.#hiddenTimer);
    if (document.hidden) {
      this.#hiddenTimer = setTimeout(() => {
        this.#asleep = true;
        for (const [topic, known] of this.#topics) if (known.sleeps) this.send({ op: "unsubscribe", topic });
      }, HIDDEN_MS);
      return;
    }
    const slept = this.#asleep;
    this.#asleep = false;
    this.#openNow();
    if (slept) for (const [topic, known] of this.#topics) if (known.sleeps) this.#ask(topic);
  }

  #checkSilence() {
    const socket = this.#socket;
    if (socket?.readyState === WebSocket.OPEN && Date.now() - this.#lastMessage > SILENT_MS) {
      this.#socket = null; // its close event may take minutes to come
      socket.close();
      this.#onClose({ code: 1006 });
    }
  }
}

export const live = new Live();
