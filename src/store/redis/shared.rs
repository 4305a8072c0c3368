//! What all lanes of a store share.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    model::{
        key::CounterKey,
        time::{Clock, Now, Span, Timestamp},
    },
    store::redis::{
        breaker::Breaker,
        error::StoreError,
        key::HashTag,
        lane::Lane,
        options::RedisOptions,
        remember::Remembered,
        slice::Slices,
        spread,
        stats::{Stat, Stats},
    },
};

/// Breakers of a cluster, by slot modulo this: a node that is away must not cut off the others.
const BREAKERS: usize = 64;

/// How much later than the connection is given up a message may still be decided. Covers what the
/// two clocks differ by between two answers.
const GRACE: Span = Span::from_secs(1);

/// Most domains whose tags are kept at hand. Domains come from rules, and rules change; a tag is
/// quickly made again.
const MOST_TAGS: usize = 10_000;

/// What all lanes of a store share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: RedisOptions,
    pub(super) clock: Clock,
    pub(super) stats: Stats,
    pub(super) refusals: Remembered,
    pub(super) slices: Slices,
    /// The store is gone: everything ends.
    pub(super) stop: CancellationToken,
    /// The store's clock when our steady one showed zero, in nanoseconds; 0 while unknown.
    clock_offset: AtomicU64,
    /// With the tag that failed last, for the probe to try.
    breakers: Vec<(Breaker, Mutex<Option<HashTag>>)>,
    /// A breaker opened: the probe begins.
    pub(super) opened: Notify,
    last_error: Mutex<Option<String>>,
    /// Room for calls of the script of leases.
    pub(super) calls: Semaphore,
    /// Of all threads, for gauges.
    pub(super) lanes: Mutex<Vec<Weak<Lane>>>,
    /// By domain, at most [`MOST_TAGS`].
    tags: DashMap<Box<str>, HashTag>,
    /// Of domains that are spread over slots, at most [`MOST_TAGS`].
    spread: DashMap<Box<str>, Arc<[HashTag]>>,
}

impl Shared {
    pub(super) fn new(options: RedisOptions, clock: Clock) -> Self {
        let calls = Semaphore::new(options.max_waiting.min(Semaphore::MAX_PERMITS));
        let breakers = if options.is_cluster() { BREAKERS } else { 1 };
        Self {
            refusals: Remembered::new(options.remembered_refusals),
            slices: Slices::new(options.replicas),
            options,
            clock,
            stats: Stats::default(),
            stop: CancellationToken::new(),
            clock_offset: AtomicU64::new(0),
            breakers: std::iter::repeat_with(Default::default)
                .take(breakers)
                .collect(),
            opened: Notify::new(),
            last_error: Mutex::default(),
            calls,
            lanes: Mutex::default(),
            tags: DashMap::new(),
            spread: DashMap::new(),
        }
    }

    /// The hash tag of a domain.
    pub(super) fn tag(&self, domain: &str) -> HashTag {
        if let Some(tag) = self.tags.get(domain) {
            return tag.clone();
        }
        let tag = HashTag::new(&self.options.prefix, domain);
        keep(&self.tags, domain, tag.clone());
        tag
    }

    /// Whether counters that may be spread over slots are: elsewhere than in a cluster there is
    /// nothing to be had from it.
    pub(super) fn is_spread(&self, may: bool) -> bool {
        may && self.options.is_cluster()
    }

    /// The hash tags of a domain that is spread over slots.
    pub(super) fn spread_tags(&self, domain: &str) -> Arc<[HashTag]> {
        if let Some(tags) = self.spread.get(domain) {
            return Arc::clone(&tags);
        }
        let tags: Arc<[HashTag]> = spread::tags(&self.options.prefix, domain).into();
        keep(&self.spread, domain, Arc::clone(&tags));
        tags
    }

    /// The hash tag of one counter of a domain.
    pub(super) fn tag_of(&self, domain: &str, may_spread: bool, key: CounterKey) -> HashTag {
        if self.is_spread(may_spread) {
            return self.spread_tags(domain)[spread::part_of(key)].clone();
        }
        self.tag(domain)
    }

    fn breaker(&self, tag: &HashTag) -> &(Breaker, Mutex<Option<HashTag>>) {
        &self.breakers[usize::from(tag.slot) % self.breakers.len()]
    }

    pub(super) fn is_open(&self, tag: &HashTag) -> bool {
        self.breaker(tag).0.is_open()
    }

    pub(super) fn succeeded(&self, tag: &HashTag) {
        self.breaker(tag).0.succeeded();
    }

    pub(super) fn failed(&self, tag: &HashTag) {
        let (breaker, failing) = self.breaker(tag);
        if breaker.failed() {
            self.stats.count(Stat::BreakerOpened);
            *failing.lock() = Some(tag.clone());
            tracing::warn!(
                error = self.last_error().as_deref().unwrap_or("no answer in time"),
                "the shared store does not answer; the answers are what each domain says for that"
            );
            self.opened.notify_one();
        }
    }

    /// A tag for each breaker that is open.
    pub(super) fn open_tags(&self) -> Vec<HashTag> {
        let open = self
            .breakers
            .iter()
            .filter(|(breaker, _)| breaker.is_open());
        open.filter_map(|(_, tag)| tag.lock().clone()).collect()
    }

    /// A reply told the store's clock.
    pub(super) fn saw_clock(&self, store: Timestamp) {
        let steady = self.clock.now().steady;
        let offset = store.since(Timestamp::ZERO + Timestamp::ZERO.until(steady));
        self.clock_offset
            .store(offset.as_nanos(), Ordering::Relaxed);
    }

    /// A guess at the store's clock, good to about a round trip; our own while nothing is known.
    pub(super) fn store_clock(&self, now: Now) -> Timestamp {
        match self.clock_offset.load(Ordering::Relaxed) {
            0 => now.wall,
            offset => now.steady + Span::from_nanos(offset),
        }
    }

    /// After this, by the store's clock, a message that leaves now must not be decided any more:
    /// its requests have got another answer.
    pub(super) fn latest(&self) -> Timestamp {
        match self.clock_offset.load(Ordering::Relaxed) {
            0 => Timestamp::MAX,
            _ => self.store_clock(self.clock.now()) + self.options.silence + GRACE,
        }
    }

    pub(super) fn cannot_connect(&self, kind: StoreError, error: &str) {
        self.stats.count(Stat::FailedConnections);
        self.failed_with(kind, error);
    }

    pub(super) fn failed_with(&self, kind: StoreError, error: &str) {
        let mut last = self.last_error.lock();
        let told = format!("{kind}: {error}");
        if last.as_deref() != Some(told.as_str()) {
            tracing::debug!(error = %told, "the shared store");
            *last = Some(told);
        }
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    pub(super) fn forget_error(&self) {
        self.last_error.lock().take();
    }
}

/// Keeps a value of a domain at hand. A full table is emptied: it fills again with the domains that
/// are still asked for.
fn keep<T>(by_domain: &DashMap<Box<str>, T>, domain: &str, value: T) {
    if by_domain.len() >= MOST_TAGS {
        by_domain.clear();
    }
    by_domain.insert(domain.into(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_domains_that_come_and_go_are_bounded() {
        let shared = Shared::new(
            RedisOptions::parse("redis://localhost").unwrap(),
            Clock::machine(),
        );
        for domain in 0..3 * MOST_TAGS {
            shared.tag(&domain.to_string());
        }
        assert!(shared.tags.len() <= MOST_TAGS);
        assert_eq!(shared.tag("1"), HashTag::new(&shared.options.prefix, "1"));
    }
}
