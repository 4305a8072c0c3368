// Works for a while under a lease and says what happens, one JSON object a line.

import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

import { Limiter, Overload, Refused } from "./limiter.mjs";

const { values: options } = parseArgs({
  options: {
    target: { type: "string", default: "127.0.0.1:8081" },
    upstream: { type: "string", default: "search" }, // whose permits
    permits: { type: "string", default: "1" },
    ttl: { type: "string" }, // seconds; default: the rule's
    within: { type: "string", default: "30" }, // seconds to ask for
    work: { type: "string", default: "0.5" }, // seconds
    fail: { type: "boolean", default: false }, // the work times out
    once: { type: "boolean", default: false }, // no request id: a lost call is not repeated
  },
});

function log(event, fields = {}) {
  const at = Number((performance.now() / 1000).toFixed(4));
  console.log(JSON.stringify({ at, event, ...fields }));
}

const limiter = new Limiter(options.target, log);
try {
  await limiter.withLease(
    "clients",
    { upstream: options.upstream },
    {
      permits: Number(options.permits),
      ttl: options.ttl && Number(options.ttl) * 1000,
      within: Number(options.within) * 1000,
      idempotent: !options.once,
    },
    async (lease) => {
      // The work. Here it only waits, and stops when the lease is lost.
      await sleep(Number(options.work) * 1000, undefined, { signal: lease.signal });
      if (options.fail) throw new Overload("no answer from the upstream");
    },
  );
  log("done");
} catch (error) {
  // Errors of gRPC have a number as their code.
  if (error instanceof Refused || typeof error.code === "number") {
    log("gave_up", { why: error.name });
    process.exitCode = 1;
  } else {
    log("failed", { why: error.message });
    process.exitCode = 2;
  }
} finally {
  limiter.close();
}
