//! A domain whose counters lie in many slots of a cluster, because it is too much for one.
//!
//! A fixed number of hash tags is used, spread evenly over the slots: counters of one tag still
//! share messages. Each part of a request, by tag, is a message of its own; they are sent together,
//! and nothing is atomic over them. If one of them is not answered, the request is as if the whole
//! store had not answered; what other parts counted stays counted.

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::{RedisStore, batch::Wanted, error::StoreError, key::HashTag};
use crate::{
    algorithm::Retry,
    model::{key::CounterKey, time::Span},
    store::charges::{Charges, Outcomes, Terms},
};

/// Number of hash tags: enough for some on every node of a cluster, few enough that a busy worker's
/// messages have many requests each.
const PARTS: usize = 64;

/// Slots of a cluster.
const SLOTS: usize = 16_384;

/// The hash tags of a domain; one lies in each `PARTS`-th of the slots.
pub(super) fn tags(prefix: &str, domain: &str) -> Vec<HashTag> {
    let mut found: Vec<Option<HashTag>> = vec![None; PARTS];
    let mut missing = PARTS;
    for number in 0_u64.. {
        let tag = HashTag::new(prefix, &format!("{domain}:{number}"));
        let place = &mut found[usize::from(tag.slot) / (SLOTS / PARTS)];
        if place.is_none() {
            *place = Some(tag);
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    found.into_iter().flatten().collect()
}

/// Which of the tags a counter has.
pub(super) fn part_of(key: CounterKey) -> usize {
    let part = key.bits() % (PARTS as u128);
    usize::try_from(part).unwrap_or_default()
}

/// The charges of a request with the same tag.
struct Part<'r> {
    /// Which of the tags.
    tag: usize,
    charges: Charges<'r>,
    /// Their places in the request.
    places: SmallVec<[usize; 8]>,
}

/// A request, part by part.
fn split<'r>(charges: &Charges<'r>) -> SmallVec<[Part<'r>; 4]> {
    let mut parts: SmallVec<[Part<'r>; 4]> = SmallVec::new();
    for (place, charge) in charges.list.iter().enumerate() {
        let tag = part_of(charge.key);
        let known = parts.iter().position(|known| known.tag == tag);
        let index = known.unwrap_or_else(|| {
            parts.push(Part {
                tag,
                charges: Charges {
                    list: SmallVec::new(),
                    terms: Terms {
                        is_part: true,
                        ..charges.terms
                    },
                },
                places: SmallVec::new(),
            });
            parts.len() - 1
        });
        parts[index].charges.list.push(*charge);
        parts[index].places.push(place);
    }
    parts
}

impl RedisStore {
    /// Decides a request whose counters have different tags.
    pub(super) async fn in_many_slots(
        &self,
        tags: &[HashTag],
        charges: &Charges<'_>,
        wanted: Wanted,
        deadline: Span,
    ) -> Result<Outcomes, StoreError> {
        let parts = split(charges);
        if let [only] = parts.as_slice() {
            return self
                .in_one_slot(&tags[only.tag], charges, wanted, deadline)
                .await;
        }
        let asked = parts.iter().map(|part| {
            let tag = &tags[part.tag];
            self.in_one_slot(tag, &part.charges, wanted, deadline)
        });
        let mut all: SmallVec<[_; 8]> = SmallVec::from_elem(None, charges.list.len());
        for (part, outcomes) in parts.iter().zip(join_all(asked).await) {
            for (place, outcome) in part.places.iter().zip(outcomes?) {
                all[*place] = Some(outcome);
            }
        }
        let outcomes: Option<Outcomes> = all.into_iter().collect();
        let mut outcomes = outcomes.ok_or(StoreError::Unexpected)?;
        if !charges.are_refused(&outcomes) {
            // The parts did not know.
            let passed = outcomes.iter_mut().filter(|outcome| outcome.allowed);
            passed.for_each(|outcome| outcome.retry = Retry::After(Span::ZERO));
        }
        Ok(outcomes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::limit::{Algorithm, Quota},
        rules::limit::Limit,
        store::charges::Charge,
    };

    #[test]
    fn tags_lie_evenly_over_the_slots() {
        for domain in ["edge", "", "a}b é"] {
            let tags = tags("porteiro", domain);
            assert_eq!(tags.len(), PARTS);
            for (place, tag) in tags.iter().enumerate() {
                assert_eq!(usize::from(tag.slot) * PARTS / SLOTS, place, "{tag:?}");
            }
        }
    }

    #[test]
    fn a_request_is_taken_apart_in_its_order_and_the_same_counter_stays_together() {
        let quota = Quota::per(1, Span::from_secs(1)).unwrap();
        let limit = Limit::new(Algorithm::TokenBucket, quota);
        let bits = [1, 2, 1, 1 + PARTS as u128, 2];
        let key = |bits| Charge::new(CounterKey::from_bits(bits), &limit, 1);
        let charges = Charges {
            list: bits.into_iter().map(key).collect(),
            terms: Terms {
                spread: true,
                ..Terms::default()
            },
        };
        let parts = split(&charges);
        let places: Vec<_> = parts.iter().map(|part| part.places.to_vec()).collect();
        assert_eq!(places, [vec![0, 2, 3], vec![1, 4]]);
        for part in &parts {
            assert!(part.charges.terms.is_part);
            for (charge, place) in part.charges.list.iter().zip(&part.places) {
                assert_eq!(charge.key, charges.list[*place].key);
            }
        }
    }
}
