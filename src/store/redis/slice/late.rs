//! Blocks whose answer comes when nobody waits for it any more.
//!
//! A request that takes blocks may be given up by its caller before it is answered. If the answer
//! still comes, nobody knows how old its blocks are: they go back at once.

use smallvec::SmallVec;
use tokio::runtime::Handle;

use crate::{
    model::key::CounterKey,
    rules::limit::Limit,
    store::{
        charges::{Charge, Charges, Role, Terms},
        redis::{
            reply::Reply,
            slice::{Rest, Sent, end_of, give_back, is_untouched},
        },
    },
};

/// Gives the blocks of a request back when the answer to it comes. `blocks` are their places in it.
pub(super) fn return_when_landed(sent: Sent, charges: &Charges<'_>, blocks: &[usize]) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let request = Request {
        terms: charges.terms,
        list: charges.list.iter().map(Owned::from).collect(),
        blocks: blocks.into(),
    };
    runtime.spawn(async move {
        let Ok(reply) = sent.flight.landed().await else {
            return;
        };
        for rest in request.granted(reply, &sent) {
            give_back::give_back(&sent.shared, rest).await;
        }
    });
}

/// A request that outlives its caller.
struct Request {
    terms: Terms,
    list: Vec<Owned>,
    blocks: SmallVec<[usize; 4]>,
}

/// A charge with a limit of its own.
struct Owned {
    key: CounterKey,
    limit: Limit,
    cost: u64,
    role: Role,
    shadow: bool,
    descriptor: usize,
}

impl From<&Charge<'_>> for Owned {
    fn from(charge: &Charge<'_>) -> Self {
        Self {
            key: charge.key,
            limit: charge.limit.clone(),
            cost: charge.cost,
            role: charge.role,
            shadow: charge.shadow,
            descriptor: charge.descriptor,
        }
    }
}

impl Request {
    /// The blocks that were charged. Nothing in a request with blocks is a refund.
    fn granted(&self, reply: &Reply, sent: &Sent) -> Vec<Rest> {
        let list = self.list.iter().map(|owned| Charge {
            role: owned.role,
            shadow: owned.shadow,
            descriptor: owned.descriptor,
            ..Charge::new(owned.key, &owned.limit, owned.cost)
        });
        let charges = Charges {
            list: list.collect(),
            terms: self.terms,
        };
        let Some(outcomes) = reply.outcomes(&charges, sent.start) else {
            return Vec::new();
        };
        if is_untouched(&charges, &outcomes) {
            return Vec::new();
        }
        let blocks = self.blocks.iter().filter_map(|place| {
            let (owned, outcome) = (self.list.get(*place)?, outcomes.get(*place)?);
            outcome.allowed.then(|| Rest {
                key: owned.key,
                tag: sent.tag.clone(),
                limit: owned.limit.clone(),
                units: owned.cost,
                end: end_of(&owned.limit, outcome, reply.now()),
            })
        });
        blocks.collect()
    }
}
