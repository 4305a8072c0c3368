//! What is asked of the script: its name, then texts and numbers one after the other. The order is
//! the one in which `lua/acquire.lua` and `lua/release.lua` read them.

use std::sync::Arc;

use crate::{
    model::{
        key::CounterKey,
        lease::{EndedBy, LeaseId, Outcome},
        time::{Span, Timestamp},
    },
    rules::concurrency::ConcurrencyRule,
    store::{
        charges::Charges,
        lease::{Naming, Order, SavedLease},
        redis::{
            batch::{Batch, Wanted},
            key::HashTag,
            number,
        },
    },
};

/// One call of the script.
#[derive(Clone, Debug)]
pub(in crate::store) struct Message {
    pub(in crate::store) operation: &'static str,
    pub(in crate::store) arguments: Vec<Vec<u8>>,
    /// Counters of rate limits that are decided with it.
    pub(in crate::store) counters: Vec<Vec<u8>>,
    /// Bytes of the answer about those.
    pub(in crate::store) rates_length: usize,
}

/// A request for permits as the script gets it.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Request<'a, 'c> {
    /// In canonical form.
    pub(in crate::store) order: &'a Order,
    /// The rule of each item of the order, with its fixed limit.
    pub(in crate::store) rules: &'a [(Arc<ConcurrencyRule>, u64)],
    /// Rate limits of the same request.
    pub(in crate::store) charges: &'a Charges<'c>,
    /// Ids for the leases: one, or one per item when the caller names them.
    pub(in crate::store) ids: &'a [LeaseId],
    /// Leases that the caller still holds.
    pub(in crate::store) adopt: &'a [LeaseId],
    /// Mean hold to start from.
    pub(in crate::store) expected_hold: Option<Span>,
    /// Whom the lease follows; empty when no stream.
    pub(in crate::store) owner: &'a str,
    /// How long the lease lives without being renewed.
    pub(in crate::store) life: Span,
    /// Most leases of one key.
    pub(in crate::store) bound: usize,
    /// How it is to be decided.
    pub(in crate::store) how: How,
}

/// How a request is to be decided.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of one request"
)]
pub(in crate::store) struct How {
    pub(in crate::store) dry_run: bool,
    pub(in crate::store) partial: bool,
    /// When it is short, it is told so and nothing else happens.
    pub(in crate::store) may_wait: bool,
    /// It was asked before: it is no new demand.
    pub(in crate::store) again: bool,
    /// Nothing is granted any more.
    pub(in crate::store) draining: bool,
    /// It can never be granted, unless it is known already.
    pub(in crate::store) impossible: bool,
}

impl Message {
    fn new(operation: &'static str) -> Self {
        Self {
            operation,
            arguments: Vec::new(),
            counters: Vec::new(),
            rates_length: 0,
        }
    }

    fn text(&mut self, text: impl AsRef<[u8]>) -> &mut Self {
        self.arguments.push(text.as_ref().to_vec());
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.text(number.to_string())
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.number(u64::from(flag))
    }

    fn real(&mut self, number: f64) -> &mut Self {
        self.text(format!("{number:?}"))
    }

    fn span(&mut self, span: Span) -> &mut Self {
        self.number(number::micros_up(span).min(number::LARGEST))
    }

    fn optional(&mut self, span: Option<Span>) -> &mut Self {
        match span {
            Some(span) => self.span(span),
            None => self.text("-1"),
        }
    }

    fn key(&mut self, key: CounterKey) -> &mut Self {
        self.text(format!("{:032x}", key.bits()))
    }

    fn ids(&mut self, ids: &[LeaseId]) -> &mut Self {
        self.number(ids.len() as u64);
        for id in ids {
            self.text(id.to_string());
        }
        self
    }

    /// The counters of rate limits, and what is asked of them in both ways: to decide, and to look.
    /// `now` is a guess at the store's clock.
    fn rates(&mut self, charges: &Charges<'_>, tag: &HashTag, now: Timestamp) -> [Vec<u8>; 2] {
        [Wanted::Decision, Wanted::Look].map(|wanted| {
            let mut batch = Batch::default();
            if charges.list.is_empty() || batch.add(charges, tag, wanted, now).is_none() {
                return Vec::new();
            }
            self.counters = batch.names().map(<[u8]>::to_vec).collect();
            self.rates_length = batch.reply_length();
            batch.message(Timestamp::MAX)
        })
    }

    /// A request for permits.
    pub(in crate::store::redis) fn acquire(
        request: &Request<'_, '_>,
        tag: &HashTag,
        now: Timestamp,
    ) -> Self {
        let mut message = Self::new("acquire");
        let Request { order, how, .. } = *request;
        let [decide, look] = message.rates(request.charges, tag, now);
        message.text(decide).text(look);
        let flags = [
            how.dry_run,
            how.partial,
            how.may_wait,
            how.again,
            how.draining,
            how.impossible,
        ];
        let flags = flags
            .iter()
            .rev()
            .fold(0, |bits, bit| bits << 1 | u64::from(*bit));
        message.number(flags);
        message.naming(order.naming);
        message
            .text(&*order.holder.id)
            .text(&*order.holder.instance);
        let request_id = order.request.as_ref().map_or(&[][..], |key| key.bytes());
        message.text(hex(request_id)).text(request.owner);
        let renewal = request.rules.iter().map(|(rule, _)| rule.lease_ttl).min();
        message
            .span(request.life)
            .span(order.max_lifetime)
            .span(renewal.unwrap_or_default())
            .number(request.bound as u64);
        message.ids(request.ids).ids(request.adopt);
        message.number(order.items.len() as u64);
        for (item, (rule, limit)) in order.items.iter().zip(request.rules) {
            let flags = [rule.shadow, rule.hints.booking, rule.estimates.exposure];
            let flags = flags
                .iter()
                .rev()
                .fold(0, |bits, bit| bits << 1 | u64::from(*bit));
            let expected = request.expected_hold;
            let expected = expected.map(|hold| hold.min(rule.max_lifetime).max(SHORTEST_HOLD));
            message
                .key(item.key)
                .number(item.permits)
                .number(item.asked)
                .number(item.least)
                .number(*limit)
                .number(rule.shedding.allowed(*limit, order.class, order.cohort))
                .number(flags)
                .span(rule.estimates.prior_hold)
                .optional(expected)
                .real(rule.estimates.alpha)
                .span(rule.estimates.memory)
                .span(rule.hints.when_drained)
                .span(rule.marks.early_release)
                .span(rule.marks.ghost);
        }
        message
    }

    fn naming(&mut self, naming: Naming) {
        match naming {
            Naming::Issued => self.number(0).text(""),
            Naming::Named(name) => self.number(1).key(name),
            Naming::Anonymous => self.number(2).text(""),
        };
    }

    /// Leases that are given back.
    pub(in crate::store) fn release(releases: &[crate::store::lease::Release<'_>]) -> Self {
        let mut message = Self::new("release");
        message.number(releases.len() as u64);
        for release in releases {
            message
                .text(release.id.to_string())
                .text(release.holder.unwrap_or_default())
                .flag(release.holder.is_none())
                .flag(release.outcome == Outcome::Success)
                .optional(release.held);
        }
        message
    }

    /// Leases that are to live on.
    pub(in crate::store) fn renew(renewals: &[(LeaseId, Option<&str>, Option<Span>)]) -> Self {
        let mut message = Self::new("renew");
        message.number(renewals.len() as u64);
        for (id, holder, ttl) in renewals {
            message
                .text(id.to_string())
                .text(holder.unwrap_or_default())
                .flag(holder.is_none())
                .optional(*ttl);
        }
        message
    }

    /// The lease of this name, or the oldest one without a name, is given back.
    pub(in crate::store) fn release_by(
        key: CounterKey,
        name: Option<CounterKey>,
        outcome: Outcome,
    ) -> Self {
        let mut message = Self::new("release_by");
        message.key(key);
        match name {
            Some(name) => message.key(name),
            None => message.text(""),
        };
        message.flag(outcome == Outcome::Success).text("-1");
        message
    }

    /// Grants whose answer never left, with what they took of rate limits.
    pub(in crate::store::redis) fn undo(
        leases: &[LeaseId],
        timed_out: bool,
        refunds: &Charges<'_>,
        tag: &HashTag,
        now: Timestamp,
    ) -> Self {
        let mut message = Self::new("undo");
        let [refund, _] = message.rates(refunds, tag, now);
        message.text(refund).flag(timed_out).ids(leases);
        message
    }

    /// Leases of a stream that lives.
    pub(in crate::store) fn keep(owner: &str, life: Span, leases: &[LeaseId]) -> Self {
        let mut message = Self::new("keep");
        message.text(owner).span(life).ids(leases);
        message
    }

    /// Leases of a stream that ended.
    pub(in crate::store) fn leave(owner: &str, by: EndedBy, leases: &[LeaseId]) -> Self {
        let mut message = Self::new("leave");
        let by = match by {
            EndedBy::Released => 1,
            EndedBy::Expired => 2,
            EndedBy::SessionLost => 3,
            EndedBy::Revoked => 4,
        };
        message.text(owner).number(by).ids(leases);
        message
    }

    /// Leases that were granted without the store. `owner` tells the stream of each.
    pub(in crate::store) fn register(leases: &[(SavedLease, Span, String)]) -> Self {
        let mut message = Self::new("register");
        message.number(leases.len() as u64);
        for (lease, renewal, owner) in leases {
            message.text(lease.id.to_string());
            let naming = match lease.naming {
                Naming::Issued => 0,
                Naming::Named(_) => 1,
                Naming::Anonymous => 2,
            };
            message
                .number(naming)
                .span(lease.age)
                .span(lease.remaining)
                .span(lease.lifetime)
                .span(*renewal)
                .text(&*lease.holder)
                .text(&*lease.instance);
            match (lease.naming, &lease.request) {
                (Naming::Named(name), _) => message.key(name),
                (_, Some(request)) => message.text(hex(request)),
                (_, None) => message.text(""),
            };
            message.text(owner).number(lease.items.len() as u64);
            for item in &lease.items {
                message
                    .key(item.key)
                    .number(item.permits)
                    .number(item.asked);
            }
        }
        message
    }

    /// How keys stand.
    pub(in crate::store) fn peek(keys: &[CounterKey]) -> Self {
        let mut message = Self::new("peek");
        message.number(keys.len() as u64);
        for key in keys {
            message.key(*key);
        }
        message
    }

    /// The leases of keys, at most so many of each.
    pub(in crate::store) fn peek_leases(keys: &[CounterKey], most: usize) -> Self {
        let mut message = Self::peek(keys);
        message.operation = "peek_leases";
        message.arguments.insert(0, most.to_string().into_bytes());
        message
    }

    /// Estimates back to their prior.
    pub(in crate::store) fn reset(key: CounterKey, revoke: bool) -> Self {
        let mut message = Self::new("reset");
        message.key(key).flag(revoke);
        message
    }
}

/// A request id becomes part of a key's name: whatever is in it, that is plain text.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    text
}

/// What a caller expects is at least this: no time at all would be no estimate.
const SHORTEST_HOLD: Span = Span::from_millis(1);
