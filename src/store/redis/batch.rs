//! Requests on their way to Redis: many in one message.
//!
//! What is sent, in the words of `decide.lua` (numbers are little-endian doubles, `<d`):
//!
//! * `<dBH` the latest instant, whether a log is among the counters, number of asks;
//! * each [`Ask`];
//! * for each request `<BH` bits (1 all or nothing, 2 a quota descriptor passed already, 4 tell more,
//!   8 only look) and number of charges; for each charge `<HHHB` the ask, the ask to look with (the sum of earlier charges
//!   on the same counter), the counter, and bits (1 refund, 2 quota, 4 shadow, 8 first of its
//!   descriptor, 16 refusals are counted). Asks and counters are numbered from 1.

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::{
    model::{key::CounterKey, time::Timestamp},
    rules::Stacking,
    store::{
        charges::{Charge, Charges, Role, cost_so_far},
        redis::{
            ask::{Ask, Tag},
            key::{self, HashTag},
            number, reply,
        },
    },
};

const REFUND: u8 = 1;
const QUOTA: u8 = 2;
const SHADOW: u8 = 4;
const FIRST: u8 = 8;
const COUNT_DENIED: u8 = 16;

/// Most charges in one message: bounds how long Redis is busy with it (well under a millisecond)
/// and how much is lost with it.
pub(super) const MOST_CHARGES: usize = 512;

/// What is wanted of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// To decide and to count.
    Decision,
    /// To tell how a decision would come out.
    Look,
}

/// Requests that are sent together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    asks: SmallVec<[Ask; 8]>,
    requests: Vec<u8>,
    counters: Vec<Counter>,
    by_key: HashTable<u16>,
    /// Names of the counters, one after the other.
    names: Vec<u8>,
    charges: usize,
    /// Bytes of the reply.
    reply: usize,
    has_logs: bool,
    /// After this instant of the store's clock it is void; none: when nobody waits any more.
    latest: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter {
    key: CounterKey,
    is_log: bool,
    /// End of its name in `names`.
    end: usize,
}

impl Batch {
    /// A batch that is void after `latest` by the store's clock.
    pub(super) fn until(latest: Option<Timestamp>) -> Self {
        Self {
            latest,
            ..Self::default()
        }
    }

    /// After when it is void.
    pub(super) fn latest(&self) -> Option<Timestamp> {
        self.latest
    }

    /// Number of bytes of the reply.
    pub(super) fn reply_length(&self) -> usize {
        reply::HEAD + self.reply
    }

    /// Whether so many more charges may be added.
    pub(super) fn has_room_for(&self, charges: usize) -> bool {
        self.charges == 0 || self.charges + charges <= MOST_CHARGES
    }

    /// Adds one request. `now` is a guess at the store's clock. Returns where the answer to it will
    /// begin in the reply; none when it has more charges than can be numbered.
    pub(super) fn add(
        &mut self,
        charges: &Charges<'_>,
        tag: &HashTag,
        wanted: Wanted,
        now: Timestamp,
    ) -> Option<usize> {
        let list = &charges.list;
        let first = self.reply_length();
        let count = u16::try_from(list.len()).ok()?;
        // Two asks a charge at most.
        if self.asks.len() + 2 * list.len() >= usize::from(u16::MAX) {
            return None;
        }
        let together = charges.terms.stacking == Stacking::AllOrNothing;
        let look_only = wanted == Wanted::Look;
        let bits = [
            together,
            charges.terms.quota_passed,
            charges.terms.tell_more,
            look_only,
        ];
        let bits = bits
            .iter()
            .rev()
            .fold(0, |bits, bit| bits << 1 | u8::from(*bit));
        self.requests.push(bits);
        self.requests.extend_from_slice(&count.to_le_bytes());
        for (index, charge) in list.iter().enumerate() {
            let patience = charges.terms.patience_with(charge.limit);
            let ask = self.ask(Ask::new(charge.limit, charge.cost, patience, now));
            let sum = cost_so_far(list, index);
            let look = if sum == charge.cost {
                ask
            } else {
                self.ask(Ask::new(charge.limit, sum, patience, now))
            };
            let counter = self.counter(charge, tag);
            let starts = index == 0 || list[index - 1].descriptor != charge.descriptor;
            for number in [ask, look, counter] {
                self.requests.extend_from_slice(&number.to_le_bytes());
            }
            self.reply += reply::record_length(&charge.limit.algorithm);
            self.requests
                .push(bits_of(charge) | if starts { FIRST } else { 0 });
        }
        self.charges += list.len();
        Some(first)
    }

    /// Number of an ask, counted from 1.
    fn ask(&mut self, ask: Ask) -> u16 {
        let known = self.asks.iter().position(|known| *known == ask);
        let place = known.unwrap_or_else(|| {
            self.asks.push(ask);
            self.asks.len() - 1
        });
        u16::try_from(place + 1).unwrap_or(u16::MAX)
    }

    /// Number of a counter, counted from 1.
    fn counter(&mut self, charge: &Charge<'_>, tag: &HashTag) -> u16 {
        let key = charge.key;
        let is_log = Tag::of(&charge.limit.algorithm) == Tag::SlidingLog;
        let counters = &mut self.counters;
        let same = |place: &u16| {
            let known = &counters[usize::from(*place) - 1];
            known.key == key && known.is_log == is_log
        };
        if let Some(place) = self.by_key.find(hash(key), same) {
            return *place;
        }
        key::write(&mut self.names, tag, key);
        counters.push(Counter {
            key,
            is_log,
            end: self.names.len(),
        });
        self.has_logs |= is_log;
        let place = u16::try_from(counters.len()).unwrap_or(u16::MAX);
        let rehash = |place: &u16| hash(counters[usize::from(*place) - 1].key);
        self.by_key.insert_unique(hash(key), place, rehash);
        place
    }

    /// The names of the counters: the keys of the message.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.counters.len()).map(|index| {
            let start = index.checked_sub(1).map_or(0, |i| self.counters[i].end);
            &self.names[start..self.counters[index].end]
        })
    }

    /// The message. After `latest` by the store's clock nothing is decided any more, nor after the
    /// batch's own.
    pub(super) fn message(&self, latest: Timestamp) -> Vec<u8> {
        let mut message = Vec::with_capacity(64 + 64 * self.asks.len() + self.requests.len());
        let latest = self.latest.map_or(latest, |own| own.min(latest));
        number::push(&mut message, number::micros(latest));
        message.push(u8::from(self.has_logs));
        let count = u16::try_from(self.asks.len()).unwrap_or(u16::MAX);
        message.extend_from_slice(&count.to_le_bytes());
        for ask in &self.asks {
            ask.write(&mut message);
        }
        message.extend_from_slice(&self.requests);
        message
    }
}

fn bits_of(charge: &Charge<'_>) -> u8 {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    bit(charge.refund, REFUND)
        | bit(charge.role == Role::Quota, QUOTA)
        | bit(charge.shadow, SHADOW)
        | bit(charge.limit.count_denied, COUNT_DENIED)
}

#[expect(clippy::cast_possible_truncation, reason = "the key is a hash already")]
fn hash(key: CounterKey) -> u64 {
    key.bits() as u64
}
