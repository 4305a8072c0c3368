//! What a book has to tell others.

use std::sync::Arc;

use crate::{
    algorithm::concurrency::law::Change,
    model::{key::CounterKey, lease::LeaseId},
    store::lease::{Answer, Revoked, SessionId, Ticket},
};

/// Something that others want to know.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request that waited has its answer.
    Settled {
        /// Which.
        ticket: Ticket,
        /// The answer.
        answer: Box<Answer>,
    },
    /// Leases of a session were taken back.
    Revoked {
        /// Whose.
        session: SessionId,
        /// Which, and why.
        revoked: Revoked,
    },
    /// A lease on which rate units hang has ended.
    RatesSettled {
        /// Which.
        lease: LeaseId,
        /// Give them back.
        refund: bool,
    },
    /// An adaptive limit moved.
    LimitChanged {
        /// The limit's rule.
        path: Arc<str>,
        /// The counted instance.
        key: CounterKey,
        /// From where to where, and why.
        change: Change,
    },
}
