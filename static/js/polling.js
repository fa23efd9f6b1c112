// The socket's frames by long poll, where websockets do not come through.
const REST_MS = 250; // between two answers; the server waits for news by itself

export class Polling {
  #abort = null;

  // topics() gives [topic, seq] of all that is subscribed; receive takes each frame, end is told why it ended.
  constructor({ topics, stream, receive, end }) {
    Object.assign(this, { topics, stream, receive, end });
  }

  start() {
    this.#abort = new AbortController();
    this.#run(this.#abort);
  }

  // Ask again: the topics changed.
  restart() {
    this.stop();
    this.start();
  }

  stop() {
    this.#abort?.abort();
    this.#abort = null;
  }

  async #run(abort) {
    try {
      while (!abort.signal.aborted) {
        const answer = await fetch(`/api/v1/poll?${this.#query()}`, { signal: abort.signal });
        if (answer.status === 401) return this.end("signed-out");
        if (!answer.ok) return this.end("failed");
        for (const frame of await answer.json()) if (!abort.signal.aborted) this.receive(frame);
        await new Promise((resolve) => {
          setTimeout(resolve, REST_MS);
        });
      }
    } catch (error) {
      if (error.name !== "AbortError") this.end("failed");
    }
    return undefined;
  }

  #query() {
    const query = new URLSearchParams();
    const stream = this.stream();
    if (stream) query.append("stream", stream);
    for (const [topic, seq] of this.topics()) {
      query.append("topic", topic);
      query.append("after", seq ?? "");
    }
    return query;
  }
}
