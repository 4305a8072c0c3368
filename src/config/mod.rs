//! From rule files to [`crate::rules`], with every finding of every file at once.
//!
//! Text becomes a tree with places (`yaml`, with `dialect` and `lenient` for the differences
//! between YAML 1.1 and 1.2), the tree is checked for shape (`shape`) and read into raw
//! structures (`raw`), and those are compiled (`compile`).
//!
//! # The rules language
//!
//! One file has one domain; `.yaml` and `.yml` files are read. Fields marked ° are those of the
//! reference service and mean the same there.
//!
//! ## The file
//!
//! | field | value | default | meaning |
//! |---|---|---|---|
//! | `domain` ° | text | required | what requests call it; one file per domain unless domains are merged |
//! | `descriptors` ° | list of descriptors | none | the tree |
//! | `stacking` | `independent`, `all_or_nothing` | `independent` | whether each limit of a request stands alone, or a request refused by one costs nothing at the others |
//! | `on_store_failure` | `local`, `allow`, `deny` | `local` | the answer while a shared store is away |
//! | `spread` | boolean | false | the counters lie in many slots of a Redis cluster instead of one, for a domain that is too much for one: a request with several limits is then decided slot by slot, each for itself; not with `all_or_nothing` or `concurrency`; without effect elsewhere |
//! | `unknown_key` | `pass`, `refuse` | `pass` | what Acquire does with an item that has no rule: ignore it, or answer `UNKNOWN_KEY`; `ShouldRateLimit` always lets it pass |
//! | `answer` | mapping, below | nothing | the contract with clients |
//!
//! ## A descriptor
//!
//! | field | value | default | meaning |
//! |---|---|---|---|
//! | `key` ° | text | required | the entry's key; a `*` makes it a pattern over `key_value` |
//! | `value` ° | text, pattern with `*`, `cidr:NETWORK`, `regex:EXPRESSION` | any value, each with its own counter | the most specific wins: the text, then the longest network, then the first pattern in the order of the files, then the key alone |
//! | `descriptors` ° | list of descriptors | none | the next entry |
//! | `rate_limit` ° | mapping, below | none | one limit |
//! | `limits` | list, below | none | several limits (at most 64), all of which must pass; instead of `rate_limit` |
//! | `concurrency` | mapping, below | none | a limit on work in flight, besides the others |
//! | `mask` | `{ipv4: 0…32, ipv6: 0…128}` | whole addresses | addresses are counted per prefix |
//! | `scope` | `user`, `global`, `shared` | `user` | whose limit it is: the caller's, all of the caller's routes together, a resource that callers share: refused by it, HTTP and Acquire say 503 instead of 429, and the reason is `shared` (`shed` for what an adaptive limit or criticality refuses) |
//! | `advertise` | boolean | true | false: no header describes the limits here; a refusal by them shows in `Retry-After`, reason and body only |
//! | `request_limit` | `window`, `numbers` | `window` | what a limit that comes with a request means: as in the reference a window of the clock in place of the rule's limits, or its numbers for the rule's single limit, whose algorithm, anchor and name stay |
//! | `shadow_mode` ° | boolean | false | over limit is counted, the answer is OK |
//! | `quota_mode` ° | boolean | false | refused only when all quota descriptors of the request are over |
//! | `detailed_metric` ° | boolean | false | the statistics, `/top` and log lines of refusals name every value |
//! | `value_to_metric` ° | boolean | false | the same with this level's value |
//! | `share_threshold` ° | boolean | false | all values that match this pattern share one counter |
//! | `metadata` ° | mapping | none | sent in `dynamic_metadata` when the limit here passed; the binding limit's also in ours (`rule_metadata`) and in bodies (`{metadata.NAME}`) |
//!
//! ## `rate_limit`
//!
//! | field | value | default | meaning |
//! |---|---|---|---|
//! | `unit` ° | `second`, `minute`, `hour`, `day`, `week`, `month`, `year`, any letter case | required unless unlimited | the window, aligned with the clock; month and year are 30 and 365 days |
//! | `requests_per_unit` ° | 0…4294967295 | 0 | 0 refuses everything |
//! | `unit_multiplier` | 1…4294967295 | 1 | the window is this many units long |
//! | `unlimited` ° | boolean | false | no counting; instead of `unit` |
//! | `name` ° | text | none | shown to callers; what `replaces` names |
//! | `replaces` ° | list of `{name: TEXT}` | none | limits of the same request that are dropped when this one applies |
//!
//! ## An element of `limits`
//!
//! | field | value | default | meaning |
//! |---|---|---|---|
//! | `rate` | `N/PERIOD`, such as `5/s`, `600/minute`, `3/5d` | required, or `unit` | how much per how long |
//! | `unit`, `requests_per_unit`, `unit_multiplier` | as in `rate_limit` | | instead of `rate` |
//! | `algorithm` | `fixed_window`, `sliding_log`, `sliding_window`, `token_bucket`, `leaky_bucket`, `leaky_queue` | `fixed_window` | how it is counted; another one starts afresh at a reload |
//! | `burst` | 1… | N of the rate | size of the bucket or of the queue |
//! | `anchor` | `clock`, `first_hit`, `last_hit`, `calendar` | `clock` | where a fixed window starts; `calendar` takes exactly one minute, hour, day, week, month or year |
//! | `time_zone` | IANA name | `UTC` | of the calendar |
//! | `count_denied` | boolean | true for `fixed_window` | whether refused hits are counted under independent stacking |
//! | `hold` | boolean | false | `leaky_queue` only: the answer waits for its slot, at most half of the caller's timeout; without it, and beyond that, what would have to wait is refused and told how long |
//! | `slice` | `{size: auto or 1…1000000, max_staleness: 1ms…10s}` | off; `auto`, `100ms` | `fixed_window` (not from the last hit), `token_bucket`, `leaky_bucket`, with a shared store only: each process takes blocks of units ahead and serves from memory; never over the limit, at most the blocks that are held under it; refused hits are not counted; a request is served from memory when every limit that it meets is sliced |
//! | `cost_unit` | `requests`, `bytes`, any name | `requests` | what one hit is |
//! | `name` | text | none | as in `rate_limit`; keeps the counter when limits are put in another order |
//! | `replaces` | list | none | as in `rate_limit` |
//!
//! Above 10000 a `sliding_log` is not exact any more: a warning.
//!
//! ## `concurrency`
//!
//! | field | value | default | meaning |
//! |---|---|---|---|
//! | `limit` | 0… | this, `target_latency` or `law` | permits; 0 drains |
//! | `law` | `fixed`, `target`, `aimd`, `vegas`, `gradient2` | by what is given | how the limit adapts |
//! | `target_latency` | time | none | law `target`: throughput times this |
//! | `guard` | `knee`, `floor`, `none` | `knee` | law `target`: against targets out of reach |
//! | `initial`, `min`, `max` | 1… | of the law | bounds of an adaptive limit |
//! | `timeout`, `backoff` | time, 0.5…0.99 | 5 s, 0.9 | law `aimd` |
//! | `smoothing` | 0.01…1 | 1, 0.2 | laws `vegas` and `gradient2` |
//! | `tolerance`, `queue` | 1…10, 0… | 1.5, 4 | law `gradient2` |
//! | `window` | time | 1 s | how often an adaptive limit is fed; 0 s: by each request |
//! | `lease_ttl`, `max_lifetime` | time | 30 s, 10 min | life of a lease, and with its renewals |
//! | `max_wait`, `max_waiters` | time, count | 0 s, 1000 | waiting for a permit |
//! | `queue_target` | time | none | wait and work together; bounds the queue |
//! | `lifo` | boolean | false | newest first once the queue stood for 100 ms |
//! | `heavy_patience` | time | none | after this long lighter requests do not overtake a heavy one |
//! | `under_share_wait` | time | none | how long tenants below their fair share wait |
//! | `criticality` | four fractions, or `{priority_wait: TIME}` | `[1, 1, 0.9, 0.8]` | who is refused first |
//! | `on_restart` | `forget`, `quarantine`, `reattach`, `snapshot` | `forget` | leases of the life before that are not known: after a start `forget` grants at once, `quarantine` nothing for one `lease_ttl`, `reattach` nothing for 500 ms; `snapshot` grants at once what `--state` says is free, and is `quarantine` without a state file or after a kill |
//! | `on_shrink` | `keep`, `revoke_newest` | `keep` | when the limit falls below what is in flight |
//! | `refund_on` | list of `dropped`, `expired` | none | whether rate units that were taken with a lease (by Acquire, or under `all_or_nothing`) are given back when its holder says that the work was dropped, or nobody says how it ended |
//! | `learn_weights` | `{max: N}`, 2…1000000 | off | an Acquire that does not say how many permits it needs takes as many as the work of its key costs (mean of service time × permits, told at Release) beside the median of the rule's keys: 1 to N, never more than the limit |
//! | `prior_hold`, `ewma_alpha`, `exposure`, `exposure_tau` | time, 0.001…1, boolean, time | 1 s, 0.2, true, 2 s | estimates of the mean hold |
//! | `hint_booking`, `hint_jitter`, `hint_when_drained` | boolean, 0…1, time | true, 0.1, 1 s | what refused callers are told |
//! | `early_release_mark`, `ghost_ttl` | time | 2 s, 5 s | how long a proxy's release that overtook its acquire is remembered, and a refusal whose release will follow |
//! | `connection_gone_after`, `connection_grace` | time (the first also `off`), time | 1 s, 10 s | a proxy all of whose connections to the gRPC port are gone this long has probably died: what is left of its leases is cut to the second; a wrong guess costs no more than the rest of the TTL |
//! | `shadow` | boolean | false | count, never refuse |
//! | `name` | text | none | what refusals call it |
//! | `lease_entry` | key, or list of keys | `lease_id`, `x-request-id` | the entry whose value names the lease |
//! | `release_entry` | `KEY=VALUE` | `op=release` | the entry that makes a request a release |
//! | `status_entry`, `flags_entry`, `duration_entry` | key | `status`, `flags`, `duration_ms` | entries that tell how it went |
//! | `criticality_entry`, `tenant_entry` | key | `criticality`, `tenant_share` | entries that tell who asks |
//!
//! With a shared store (`--store`) permits are counted over all replicas. Leases then outlive a start
//! of a replica (`on_restart` has nothing to do), those of a proxy whose connections are gone keep
//! their TTL (it may have others to another replica), a lost stream is noticed within 15 s when its
//! replica dies, and those who wait are served in order at each replica but not over all of them. A
//! domain with a limit that adapts, or with `under_share_wait`, `heavy_patience`, `lifo`,
//! `queue_target`, `priority_wait`, `revoke_newest`, `learn_weights` or `refund_on` needs all of them in one process:
//! its leases are counted by each replica on its own, with a warning when the rules are loaded.
//!
//! Times are numbers with units: `500ms`, `10s`, `15m`, `1h30m`, `5d`.
//!
//! ## `answer`
//!
//! | field | value | default | meaning |
//! |---|---|---|---|
//! | `headers` | list of `reference`, `x_ratelimit`, `ietf`, `retry_after`, `retry_after_ms`, `reason` | none | header families |
//! | in it `x_ratelimit:` | `{used, resource, bucket, scope: boolean, reset_after: boolean or short, global: boolean or alone}` | all false | more of its headers; `short` leaves zeros at the end away (and is exact on refusals), `alone` leaves away what describes one limit when a rule of global scope refuses |
//! | in it `ietf:` | `{version: 03, 07 or 10, pk: boolean}` | 10, false | draft, and whether partition keys are shown |
//! | `pass_headers` | `always`, `never`, list of `KEY=VALUE` | `always` | which requests that pass get headers: those with one of these entries |
//! | `body` | `none`, `problem_json`, `{json: TEMPLATE}` | `none` | body of a refusal; placeholders: [`PLACEHOLDERS`](crate::rules::answer::PLACEHOLDERS), and `{metadata.NAME}` |
//! | `messages` | `{by: KEY, default: TEXT, texts: {LANGUAGE: TEXT}}` | English | text of a refusal, by the entry that has the language |
//! | `spread` | 0…1 | 0 | hints are spread over this share of themselves |
//! | `metadata` | boolean | false | `dynamic_metadata` in our shape |
//!
//! # What is refused, and what is taken with a warning
//!
//! All that the reference refuses is refused. A known field at a place where it means nothing, a
//! field given twice and a second document are taken with a warning, as the reference takes them.
//! Refused although the reference takes it: control characters in names, keys and values;
//! characters that break lines in YAML 1.1 only (U+0085, U+2028, U+2029); byte order marks inside
//! a text; nesting deeper than 200 levels; files that are larger than [`LoadOptions`] allow.

mod answer;
mod compile;
mod concurrency;
mod dialect;
pub(crate) mod document;
mod entry;
mod expand;
mod finding;
mod law;
mod lenient;
mod limits;
mod load;
mod matcher;
mod metadata;
mod options;
mod own;
mod parse;
mod quota;
mod raw;
mod reader;
mod reload;
mod scalar;
mod shape;
mod slice;
mod units;
mod yaml;

pub use finding::{Finding, Position, Severity};
pub use load::load;
pub use options::LoadOptions;
pub use parse::{Loaded, LoadedDomain, parse};
pub use reload::Reload;
