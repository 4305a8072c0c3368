//! From what a script returns to outcomes.
//!
//! A script decides and tells the state it decided on. What the answer says besides (what is left,
//! when it is back) is calculated here from that state, by the same functions that serve counters
//! in memory. Of a log, which is not sent around, the script tells these numbers itself.
//!
//! A reply is the instant (`<d`), then one record a charge: `<Bddd` bits (1 allowed, 2 the calendar
//! window is unknown, 4 nothing was touched) and the state's three words; for a log `<Bddddd` bits,
//! units used before, wait, time until it is empty, wait after the whole request, and the wait for
//! one unit more.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    algorithm::{self, Outcome, Retry},
    model::{
        key::CounterKey,
        limit::{Algorithm, State},
        time::{Span, Timestamp},
    },
    rules::{Stacking, limit::Limit},
    store::{
        charges::{Charge, Charges, Outcomes, cost_so_far},
        redis::number::{LARGEST, WIDTH, instant, rounded, to_micros, whole},
    },
};

/// Bytes before the first record.
pub(super) const HEAD: usize = WIDTH;

const ALLOWED: u8 = 1;
const UNKNOWN_WINDOW: u8 = 2;
const UNTOUCHED: u8 = 4;

/// Bytes of the record of a charge.
pub(super) fn record_length(algorithm: &Algorithm) -> usize {
    let words = if *algorithm == Algorithm::SlidingLog {
        5
    } else {
        3
    };
    1 + words * WIDTH
}

/// What a script returned for a batch.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    bytes: Bytes,
}

impl Reply {
    /// None when the bytes are not a reply of this length, nor the word that the batch came late.
    pub(super) fn new(bytes: Bytes, length: usize) -> Option<Self> {
        (bytes.len() == length || bytes.len() == HEAD).then_some(Self { bytes })
    }

    /// The batch came too late: nothing was decided.
    pub(super) fn is_late(&self) -> bool {
        self.bytes.len() == HEAD
    }

    /// The instant by the store's clock.
    pub(super) fn now(&self) -> Timestamp {
        instant(number(&self.bytes).unwrap_or_default())
    }

    /// The outcomes of the request whose answer begins here. None when the store could not decide
    /// it: its clock shows a calendar window that it was not told about.
    pub(super) fn outcomes(&self, charges: &Charges<'_>, start: usize) -> Option<Outcomes> {
        let list = &charges.list;
        let together = charges.terms.stacking == Stacking::AllOrNothing;
        let mut start = start;
        let mut answers: SmallVec<[Answer; 8]> = SmallVec::with_capacity(list.len());
        for (index, charge) in list.iter().enumerate() {
            let record = self.record(charge, start)?;
            if record.bits & UNKNOWN_WINDOW != 0 {
                return None;
            }
            start += record_length(&charge.limit.algorithm);
            let asked = Asked {
                charges,
                charge,
                look_cost: cost_so_far(list, index).min(LARGEST),
                count_denied: charge.limit.count_denied && !together,
                more: charges.terms.tell_more,
                now: self.now(),
            };
            answers.push(record.answer(&asked));
        }
        let mut outcomes: Outcomes = answers.iter().map(|answer| answer.outcome).collect();
        let touched = answers.iter().any(|answer| !answer.untouched);
        let of_several = list.len() > 1 || charges.terms.is_part;
        let refused = || charges.terms.is_part || charges.are_refused(&outcomes);
        if !together && touched && of_several && refused() {
            for (index, charge) in list.iter().enumerate() {
                if !charge.refund {
                    outcomes[index].retry = again(charges, &answers, index, self.now());
                }
            }
        }
        Some(outcomes.into_iter().map(in_micros).collect())
    }

    fn record(&self, charge: &Charge<'_>, start: usize) -> Option<Record> {
        let length = record_length(&charge.limit.algorithm);
        let (bits, bytes) = self.bytes.get(start..start + length)?.split_first()?;
        let mut words = [0; 5];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(WIDTH)) {
            *word = number(bytes)?;
        }
        Some(Record { bits: *bits, words })
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    let eight = bytes.first_chunk::<WIDTH>()?;
    Some(whole(f64::from_le_bytes(*eight)))
}

/// The clock of the store ticks in microseconds: hints are rounded up to them.
pub(super) fn in_micros(outcome: Outcome) -> Outcome {
    Outcome {
        reset: to_micros(outcome.reset),
        retry: match outcome.retry {
            Retry::After(wait) => Retry::After(to_micros(wait)),
            Retry::Never => Retry::Never,
        },
        delay: to_micros(outcome.delay),
        more: outcome.more.map(to_micros),
        ..outcome
    }
}

/// What was decided about one charge, as the script told it.
#[derive(Clone, Copy, Debug)]
struct Record {
    bits: u8,
    words: [u64; 5],
}

/// What was asked by one charge.
struct Asked<'a, 'r> {
    charges: &'a Charges<'r>,
    charge: &'a Charge<'r>,
    /// Its cost together with earlier charges of the request on the same counter.
    look_cost: u64,
    /// A refusal was counted.
    count_denied: bool,
    /// [`Outcome::more`] is wanted.
    more: bool,
    now: Timestamp,
}

/// What is known about one charge.
struct Answer {
    outcome: Outcome,
    after: After,
    untouched: bool,
}

/// How a counter stands after a charge.
#[derive(Clone, Copy)]
enum After {
    State(State),
    /// Of a log: how long until the charge (with earlier ones on it) passes.
    Wait(Span),
}

/// The wait after which a charge of a refused request would pass together with the rest: what
/// passed is gone all the same, and has to come back first.
fn again(charges: &Charges<'_>, answers: &[Answer], index: usize, now: Timestamp) -> Retry {
    let list = &charges.list;
    let charge = &list[index];
    let look_cost = cost_so_far(list, index).min(LARGEST);
    let same = |other: &&Charge<'_>| same_counter(charge.key, charge.limit, other);
    let last = list.iter().rposition(|other| same(&other));
    match answers[last.unwrap_or(index)].after {
        After::State(state) => {
            let quota = rounded(charge.limit.quota);
            let again = algorithm::look(&charge.limit.algorithm, quota, &state, now, look_cost);
            charges.terms.within_patience(charge, again).retry
        }
        After::Wait(_) if look_cost.max(1) > rounded(charge.limit.quota).units() => Retry::Never,
        After::Wait(_) => match answers[index].after {
            After::Wait(wait) => Retry::After(wait),
            After::State(_) => answers[index].outcome.retry,
        },
    }
}

fn same_counter(key: CounterKey, limit: &Limit, other: &Charge<'_>) -> bool {
    let is_log = |limit: &Limit| limit.algorithm == Algorithm::SlidingLog;
    other.key == key && is_log(other.limit) == is_log(limit)
}

impl Record {
    fn answer(&self, asked: &Asked<'_, '_>) -> Answer {
        let (outcome, after) = if asked.charge.limit.algorithm == Algorithm::SlidingLog {
            (
                self.of_log(asked),
                After::Wait(Span::from_micros(self.words[3])),
            )
        } else {
            let (outcome, after) = self.of_state(asked);
            (outcome, After::State(after))
        };
        Answer {
            outcome: Outcome {
                // Both say the same (the twins are tested); the word of the one that wrote counts.
                allowed: self.allowed(),
                ..outcome
            },
            after,
            untouched: self.untouched(),
        }
    }

    fn allowed(&self) -> bool {
        self.bits & ALLOWED != 0
    }

    fn untouched(&self) -> bool {
        self.bits & UNTOUCHED != 0
    }

    fn of_state(&self, asked: &Asked<'_, '_>) -> (Outcome, State) {
        let charge = asked.charge;
        let algorithm = &charge.limit.algorithm;
        let quota = rounded(charge.limit.quota);
        let cost = charge.cost.min(LARGEST);
        let mut state = self.state(algorithm, quota.units());
        let look = |state: &State, cost| algorithm::look(algorithm, quota, state, asked.now, cost);
        let too_far = *algorithm == Algorithm::LeakyQueue && !self.allowed();
        let outcome = if self.untouched() || too_far {
            let untouched = look(&state, 0);
            let cost = if self.untouched() {
                asked.look_cost
            } else {
                cost
            };
            let looked = look(&state, cost);
            Outcome {
                used_before: untouched.used_before,
                remaining: untouched.remaining,
                reset: untouched.reset,
                ..asked.charges.terms.within_patience(charge, looked)
            }
        } else if charge.refund {
            algorithm::give_back(algorithm, quota, &mut state, asked.now, cost);
            Outcome {
                retry: Retry::After(Span::ZERO),
                ..look(&state, 0)
            }
        } else {
            let count_denied = asked.count_denied;
            algorithm::take(algorithm, quota, &mut state, asked.now, cost, count_denied)
        };
        let one_more = outcome.remaining.checked_add(1).filter(|_| asked.more);
        let more = one_more.map(|cost| look(&state, cost).retry);
        let more = match more {
            Some(Retry::After(wait)) => Some(wait),
            Some(Retry::Never) | None => None,
        };
        (Outcome { more, ..outcome }, state)
    }

    /// The state in nanoseconds.
    fn state(&self, algorithm: &Algorithm, units: u64) -> State {
        let [until, a, b, ..] = self.words;
        if until == 0 {
            return State::default();
        }
        let until = instant(until);
        match algorithm {
            Algorithm::SlidingWindow => State { until, a, b },
            Algorithm::FixedWindow(_) | Algorithm::SlidingLog => State {
                until,
                a,
                b: instant(b).as_nanos(),
            },
            // `a` counts parts of a microsecond, so a thousand times as many of a nanosecond.
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
                let units = u128::from(units.max(1));
                let parts = u128::from(a) * 1_000;
                let early = u64::try_from(parts / units).unwrap_or_default();
                State {
                    until: until - Span::from_nanos(early),
                    a: u64::try_from(parts % units).unwrap_or_default(),
                    b: instant(b).as_nanos(),
                }
            }
        }
    }

    fn of_log(&self, asked: &Asked<'_, '_>) -> Outcome {
        let charge = asked.charge;
        let quota = rounded(charge.limit.quota);
        let [used, wait, reset, _, more] = self.words;
        let wait = Span::from_micros(wait);
        let cost = if self.untouched() {
            asked.look_cost
        } else {
            charge.cost
        };
        let taken = self.allowed() && !self.untouched() && !charge.refund && charge.cost > 0;
        let retry = if self.allowed() {
            Retry::After(Span::ZERO)
        } else if cost.max(1) > quota.units() {
            Retry::Never
        } else {
            Retry::After(wait)
        };
        let left = quota.units().saturating_sub(used);
        let remaining = left.saturating_sub(if taken { charge.cost } else { 0 });
        Outcome {
            allowed: self.allowed(),
            used_before: used,
            remaining,
            // What was taken now leaves last. An allowed charge's wait is how far the clock is
            // behind the log.
            reset: if taken {
                wait.saturating_add(quota.period())
            } else {
                Span::from_micros(reset)
            },
            retry,
            delay: Span::ZERO,
            more: (asked.more && remaining < quota.units()).then(|| Span::from_micros(more)),
        }
    }
}
