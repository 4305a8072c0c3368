// Leases on work in flight from porteiro, taken politely. The messages are read from proto/.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const TRIES = 5;
const FIRST_WAIT = 50, LONGEST_WAIT = 2000; // milliseconds, after calls that failed
const HINT_JITTER = 0.1; // those who were told the same time should not come back together
const RENEW_AGAIN = 200; // milliseconds, when nobody answered

// The connection failed, so the call may or may not have been decided.
const LOST = [grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED];

const protos = fileURLToPath(new URL("../../../proto", import.meta.url));
const definition = loadSync("porteiro/v1/limiter.proto", {
  includeDirs: [protos],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
});
const { LimiterService } = grpc.loadPackageDefinition(definition).porteiro.v1;

/** There is no permit, and no point in asking on. */
export class Refused extends Error {
  /** `answer.http_status` says what an HTTP server should answer, `retry_after` when to come back. */
  constructor(answer) {
    super(answer.decision);
    this.name = "Refused";
    this.answer = answer;
  }
}

/** Work that failed for want of capacity: the server learns from it. */
export class Overload extends Error {}

/** A connection to one porteiro. `log(event, fields)` is told what happens. */
export class Limiter {
  constructor(target, log = () => {}) {
    // Keepalive notices a server that is gone without a word.
    this.client = new LimiterService(target, grpc.credentials.createInsecure(), {
      "grpc.keepalive_time_ms": 10_000,
      "grpc.keepalive_timeout_ms": 5_000,
    });
    this.log = log;
  }

  close() {
    this.client.close();
  }

  /**
   * `await limiter.withLease("clients", {upstream: "search"}, {}, async (lease) => …)`
   *
   * Asks for at most `within` ms, renews while the work runs, and releases at its end: SUCCESS when
   * it ended well, DROPPED after an Overload, IGNORED after any other error (says nothing about
   * capacity). When `lease.signal` aborts, the lease ended early: stop the work.
   *
   * With `idempotent` the request carries an id, so a call whose answer was lost can be repeated
   * without taking a second lease. Without one such a call is not repeated.
   */
  async withLease(domain, entries, options, work) {
    const { permits = 1, ttl, within = 30_000, idempotent = true } = options;
    const request = {
      domain,
      request_id: Buffer.from(idempotent ? randomUUID() : ""),
      items: [{
        descriptor: { entries: Object.entries(entries).map(([key, value]) => ({ key, value })) },
        permits,
      }],
      ttl: duration(ttl),
    };
    const lease = await this.#acquire(request, within);
    let outcome = "IGNORED";
    try {
      const result = await work(lease);
      outcome = "SUCCESS";
      return result;
    } catch (error) {
      if (error instanceof Overload) outcome = "DROPPED";
      throw error;
    } finally {
      await lease.release(outcome);
    }
  }

  async #acquire(request, within) {
    const deadline = performance.now() + within;
    for (let number = 1; ; number++) {
      const asked = performance.now();
      let wait;
      try {
        // The server knows this deadline: it says `hopeless` when coming back is too late.
        const answer = await this.call("Acquire", request, deadline - asked);
        if (["GRANTED", "REPLAYED"].includes(answer.decision)) {
          this.log("granted", { number });
          return new Lease(this, request, answer, asked);
        }
        const told = answer.retry_after ? milliseconds(answer.retry_after) : null;
        this.log("refused", {
          number,
          decision: answer.decision,
          retry_after: told === null ? null : told / 1000,
        });
        const later = ["REFUSED", "DRAINING"].includes(answer.decision);
        if (!later || answer.hopeless || told === null || number === TRIES) throw new Refused(answer);
        // Never less than told: timers have whole milliseconds.
        wait = Math.ceil(told * (1 + Math.random() * HINT_JITTER));
      } catch (error) {
        if (error instanceof Refused) throw error;
        this.log("lost", { number, code: grpc.status[error.code] });
        if (!LOST.includes(error.code) || request.request_id.length === 0) throw error;
        // Full jitter: anything up to a bound that doubles.
        wait = Math.random() * Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** (number - 1));
        if (number === TRIES || performance.now() + wait > deadline) throw error;
      }
      await sleep(wait);
    }
  }

  /** One unary call with a timeout in ms. */
  call(method, request, timeout) {
    const deadline = Date.now() + Math.max(timeout, 1);
    return new Promise((resolve, reject) =>
      this.client[method](request, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer))));
  }
}

/** Permits that are held, and renewed by a timer. */
class Lease {
  #limiter;
  #ttl;
  #ends;
  #timer;
  #lost = new AbortController();
  #released = false;

  constructor(limiter, request, answer, asked) {
    this.id = answer.lease_id;
    this.fence = answer.fence;
    this.#limiter = limiter;
    this.#ttl = request.ttl;
    if (!this.id) return; // no item had a limit on work in flight
    // Counted from before the call: the server's own countdown began later.
    this.#ends = asked + milliseconds(answer.expires_in);
    this.#renewAt(asked + milliseconds(answer.renew_after));
  }

  /** Aborts when the lease ended early: somebody else may have the permits. */
  get signal() {
    return this.#lost.signal;
  }

  #renewAt(time) {
    if (this.#released) return;
    this.#timer = setTimeout(() => this.#renew(), Math.max(time - performance.now(), 0));
  }

  async #renew() {
    const asked = performance.now();
    const leases = [{ lease_id: this.id, ttl: this.#ttl }];
    try {
      const { results: [result] } = await this.#limiter.call("Renew", { leases }, this.#ends - asked);
      this.#limiter.log("renewed", { status: result.status });
      if (result.status !== "RENEWED") return this.#lost.abort();
      const life = milliseconds(result.expires_in);
      this.#ends = asked + life;
      this.#renewAt(asked + life / 2);
    } catch {
      const again = performance.now() + RENEW_AGAIN;
      if (again >= this.#ends) return this.#lost.abort();
      this.#renewAt(again);
    }
  }

  /** Gives the permits back. Lost on the way, they come back at the end of the TTL. */
  async release(outcome) {
    this.#released = true;
    clearTimeout(this.#timer);
    if (!this.id) return;
    try {
      const leases = [{ lease_id: this.id, outcome }];
      const { results: [result] } = await this.#limiter.call("Release", { leases }, 5000);
      this.#limiter.log("released", { status: result.status });
    } catch (error) {
      this.#limiter.log("released", { status: grpc.status[error.code] });
    }
  }
}

function duration(value) {
  return value === undefined ? undefined : { seconds: Math.floor(value / 1000), nanos: (value % 1000) * 1e6 };
}

function milliseconds(message) {
  return message.seconds * 1000 + message.nanos / 1e6;
}
