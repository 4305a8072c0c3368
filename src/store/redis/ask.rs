//! What is asked of a counter: algorithm, limit and cost in the numbers of the scripts.

use crate::{
    algorithm::calendar,
    model::{
        limit::{Algorithm, Anchor, Quota},
        time::{Span, Timestamp},
    },
    rules::limit::Limit,
    store::redis::number::{LARGEST, micros, micros_up, push, rounded},
};

/// Longer than any queue: the latest instant that the scripts are exact for.
const EVER: u64 = 1 << 53;

/// Algorithms as the scripts number them; also the first byte of a stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Clock = 1,
    FirstHit = 2,
    LastHit = 3,
    Calendar = 4,
    SlidingWindow = 5,
    TokenBucket = 6,
    LeakyBucket = 7,
    LeakyQueue = 8,
    SlidingLog = 9,
}

impl Tag {
    pub(super) fn of(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow(Anchor::Clock) => Self::Clock,
            Algorithm::FixedWindow(Anchor::FirstHit) => Self::FirstHit,
            Algorithm::FixedWindow(Anchor::LastHit) => Self::LastHit,
            Algorithm::FixedWindow(Anchor::Calendar(_)) => Self::Calendar,
            Algorithm::SlidingWindow => Self::SlidingWindow,
            Algorithm::TokenBucket => Self::TokenBucket,
            Algorithm::LeakyBucket => Self::LeakyBucket,
            Algorithm::LeakyQueue => Self::LeakyQueue,
            Algorithm::SlidingLog => Self::SlidingLog,
        }
    }

    fn is_bucket(self) -> bool {
        matches!(
            self,
            Self::TokenBucket | Self::LeakyBucket | Self::LeakyQueue
        )
    }
}

/// One ask. Many charges of a batch share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) tag: Tag,
    cost: u64,
    quota: Quota,
    /// The previous, the present and the next window's start, and the end of the last of them, in
    /// microseconds: what the script needs of the calendar.
    windows: Option<[u64; 4]>,
    /// The shaper only: how far ahead a slot may lie, in microseconds.
    patience: u64,
}

impl Ask {
    /// The ask of `cost` under `limit`. The shaper holds a request for `patience` at the most, or as
    /// long as it takes. `now` is a guess at the store's clock: of a calendar the
    /// windows around it are told.
    pub(super) fn new(limit: &Limit, cost: u64, patience: Option<Span>, now: Timestamp) -> Self {
        let windows = match &limit.algorithm {
            Algorithm::FixedWindow(Anchor::Calendar(zone)) => {
                Some(calendar::windows_around(zone, now).map(micros))
            }
            _ => None,
        };
        Self {
            tag: Tag::of(&limit.algorithm),
            cost: cost.min(LARGEST),
            quota: rounded(limit.quota),
            windows,
            patience: match (&limit.algorithm, patience) {
                (Algorithm::LeakyQueue, Some(patience)) => (patience.as_nanos() / 1_000).min(EVER),
                (Algorithm::LeakyQueue, None) => EVER,
                _ => 0,
            },
        }
    }

    /// Appends the ask as `decide.lua` unpacks it: tag, cost, units, period; for the calendar four
    /// starts and ends of windows; for the shaper the patience; for buckets cost × period and (burst − cost) × period, each divided by
    /// units as quotient and remainder, and whether the cost can ever pass.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.tag as u8);
        let period = micros_up(self.quota.period());
        for number in [self.cost, self.quota.units(), period] {
            push(bytes, number);
        }
        for number in self.windows.iter().flatten() {
            push(bytes, *number);
        }
        if self.tag == Tag::LeakyQueue {
            push(bytes, self.patience);
        }
        if self.tag.is_bucket() {
            let units = self.quota.units().max(1);
            let wanted = self.cost.max(1);
            let spare = self.quota.burst().saturating_sub(wanted);
            for factor in [self.cost, spare] {
                let product = u128::from(factor) * u128::from(period);
                let (whole, part) = (product / u128::from(units), product % u128::from(units));
                push(bytes, u64::try_from(whole).unwrap_or(u64::MAX));
                push(bytes, u64::try_from(part).unwrap_or(u64::MAX));
            }
            let ever = self.quota.units() > 0 && wanted <= self.quota.burst();
            bytes.push(u8::from(ever));
        }
    }
}
