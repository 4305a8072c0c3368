//! Requests that take blocks besides what they ask for.

use std::sync::{Arc, atomic::Ordering};

use smallvec::SmallVec;

use super::{Slices, applies, is_untouched, late};
use crate::{
    algorithm::Outcome,
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
    store::{
        charges::{Charge, Charges, Outcomes},
        redis::{flight::Flight, key::HashTag, shared::Shared},
    },
};

/// A request that takes blocks besides what it asks for. While it lives nobody else takes blocks of
/// these counters; when it was not answered, what was known of them is forgotten.
pub(in crate::store::redis) struct Plan<'s, 'r> {
    slices: &'s Slices,
    /// The request with a charge for each block behind the one that the block is for.
    pub(in crate::store::redis) charges: Charges<'r>,
    /// Places of the blocks in it.
    blocks: SmallVec<[usize; 4]>,
    answered: bool,
    /// What it waits for, when it has been sent.
    pub(in crate::store::redis) sent: Option<Sent>,
}

/// Where the answer to a request will be.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Sent {
    pub(in crate::store::redis) shared: Arc<Shared>,
    pub(in crate::store::redis) tag: HashTag,
    pub(in crate::store::redis) flight: Arc<Flight>,
    /// Where in the reply it begins.
    pub(in crate::store::redis) start: usize,
}

/// When a request left and was decided.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::redis) struct Times {
    /// Steady time before it was sent.
    pub(in crate::store::redis) sent: Timestamp,
    /// The store's clock in the reply.
    pub(in crate::store::redis) store: Timestamp,
}

/// A block that was just taken: to be given back after this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Taken {
    pub(in crate::store::redis) key: CounterKey,
    pub(in crate::store::redis) block: u64,
    pub(in crate::store::redis) hold: Span,
}

impl Drop for Plan<'_, '_> {
    fn drop(&mut self) {
        for place in &self.blocks {
            let key = self.charges.list[*place].key;
            if let Some(mut entry) = self.slices.entries.get_mut(&key) {
                entry.refilling = false;
                if !self.answered {
                    // The block may be charged and lost: that must not happen again and again.
                    (entry.seen, entry.size) = (0, 0);
                }
            }
        }
        if !self.answered
            && let Some(sent) = self.sent.take()
        {
            late::return_when_landed(sent, &self.charges, &self.blocks);
        }
    }
}

impl Slices {
    /// The request with the blocks that it should take besides; none when it takes none.
    pub(in crate::store::redis) fn plan<'s, 'r>(
        &'s self,
        charges: &Charges<'r>,
        now: Timestamp,
    ) -> Option<Plan<'s, 'r>> {
        if !applies(charges) || self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let mut plan = Plan {
            slices: self,
            charges: Charges {
                list: SmallVec::new(),
                terms: charges.terms,
            },
            blocks: SmallVec::new(),
            answered: false,
            sent: None,
        };
        for charge in &charges.list {
            plan.charges.list.push(*charge);
            let entry = self.entries.get_mut(&charge.key);
            let block = entry.map_or(0, |mut entry| entry.next_block(charge, self.parts, now));
            if block > 0 {
                plan.blocks.push(plan.charges.list.len());
                plan.charges.list.push(Charge {
                    cost: block,
                    // It does not matter to the request whether there is a block.
                    shadow: true,
                    ..*charge
                });
            }
        }
        (!plan.blocks.is_empty()).then_some(plan)
    }
}

impl Plan<'_, '_> {
    /// Keeps the blocks that were granted. Returns the outcomes of the request itself, and what is
    /// to be given back later.
    pub(in crate::store::redis) fn landed(
        mut self,
        tag: &HashTag,
        outcomes: &[Outcome],
        times: Times,
    ) -> (Outcomes, SmallVec<[Taken; 4]>) {
        self.answered = true;
        self.sent = None;
        let (mut own, mut taken) = (Outcomes::new(), SmallVec::new());
        let untouched = is_untouched(&self.charges, outcomes);
        let answers = self.charges.list.iter().zip(outcomes);
        for (place, (charge, outcome)) in answers.enumerate() {
            let is_block = self.blocks.contains(&place);
            if !is_block {
                own.push(*outcome);
            }
            // A counter that was reset meanwhile begins anew: the block was charged afterwards, or
            // is lost.
            let Some(mut entry) = self.slices.entries.get_mut(&charge.key) else {
                continue;
            };
            entry.saw(charge, outcome, times, !is_block);
            if is_block && outcome.allowed && !untouched {
                let number = self.slices.blocks.fetch_add(1, Ordering::Relaxed) + 1;
                if let Some(hold) = entry.fill(tag, charge, outcome, times, number) {
                    taken.push(Taken {
                        key: charge.key,
                        block: number,
                        hold,
                    });
                }
            }
        }
        (own, taken)
    }
}
