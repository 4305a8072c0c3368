//! Leases in Redis: one script, one call of it per request, whatever it touches.
//!
//! # How it is kept
//!
//! All keys of a domain have its hash tag, so that a request stays in one slot; which they are, and
//! what is in them, is told at the head of `lua/counter.lua`. Every key is given its expiry in the
//! step that writes it. What is in flight of a limit is the sum over a sorted set of its leases by
//! expiry; each look first ends what is due by the server's clock, so an expiry is exact whoever
//! looks. A lease that is over is remembered for a minute.
//!
//! Only the first key of a call is declared, and the counters of rate limits: the others are derived
//! from it and live in the same slot.
//!
//! # Ids
//!
//! A lease id tells the domain by its slot ([`number_of`](crate::store::redis::RedisStore::number_of))
//! and has no boot of a server in it, so that any replica that knows the domain finds the lease; 80
//! of its bits are random. The replica makes it before it asks: a call whose answer got lost can be
//! undone by the id that it would have had.

#[cfg(test)]
pub(in crate::store) mod fake;
mod message;
mod reply;

use redis::{Cmd, RedisError, ServerErrorKind, Value};
use tokio::time::timeout;

use super::{RedisStore, error::StoreError, lane::Line, lanes, number, script, stats::Stat};
use crate::{
    model::time::{Span, Timestamp},
    store::{
        charges::{Charges, Outcomes},
        redis::key::HashTag,
    },
};

pub(in crate::store) use self::{
    message::{How, Message, Request},
    reply::{Granting, Standing, State, Word, count, gone, leases, releases, renewals, standings},
};

impl RedisStore {
    /// The number of a domain in the ids of its leases: its slot. Domains may share one.
    pub(in crate::store) fn number_of(&self, domain: &str) -> u16 {
        self.shared.tag(domain).slot
    }

    /// See [`RedisOptions::session_life`](crate::store::redis::RedisOptions::session_life).
    pub(in crate::store) fn session_life(&self) -> Span {
        self.shared.options.session_life
    }

    /// Decides a request for permits together with its rate limits. `sent` is told when the request
    /// is on its way: from then on it may have been granted, whatever comes back.
    pub(in crate::store) async fn acquire(
        &self,
        domain: &str,
        request: &Request<'_, '_>,
        deadline: Span,
        sent: impl FnOnce(),
    ) -> Result<(Granting, Outcomes), StoreError> {
        let tag = self.shared.tag(domain);
        let message = Message::acquire(
            request,
            &tag,
            self.shared.store_clock(self.shared.clock.now()),
        );
        let length = message.rates_length;
        let granting = Granting::read(self.call(domain, &message, deadline, sent).await?)?;
        if granting.word != Word::UnknownWindow {
            return outcomes(granting, request.charges, length);
        }
        // The store's clock shows another calendar window than ours did: once more, by its clock.
        self.shared.stats.count(Stat::CalendarRetries);
        let message = Message::acquire(request, &tag, granting.now);
        let value = self.call(domain, &message, deadline, || ()).await?;
        outcomes(Granting::read(value)?, request.charges, length)
    }

    /// Grants whose answer never left are taken back, with what they took of rate limits.
    pub(in crate::store) fn undoing(
        &self,
        domain: &str,
        leases: &[crate::model::lease::LeaseId],
        timed_out: bool,
        refunds: &Charges<'_>,
    ) -> Message {
        let tag = self.shared.tag(domain);
        Message::undo(
            leases,
            timed_out,
            refunds,
            &tag,
            self.shared.store_clock(self.shared.clock.now()),
        )
    }

    /// Calls the script, and waits at most `deadline`.
    pub(in crate::store) async fn call(
        &self,
        domain: &str,
        message: &Message,
        deadline: Span,
        sent: impl FnOnce(),
    ) -> Result<Value, StoreError> {
        let tag = self.shared.tag(domain);
        if self.shared.is_open(&tag) {
            self.shared.stats.error(StoreError::Unreachable);
            return Err(StoreError::Unreachable);
        }
        let deadline = deadline.min(self.shared.options.deadline);
        let answered = timeout(deadline.into(), self.send(&tag, message, sent)).await;
        let answered = answered.unwrap_or(Err(StoreError::Timeout));
        match &answered {
            Ok(_) => {
                self.shared.stats.count(Stat::Decided);
                self.shared.succeeded(&tag);
            }
            Err(error) => {
                self.shared.stats.error(*error);
                self.shared.failed(&tag);
            }
        }
        answered
    }

    async fn send(
        &self,
        tag: &HashTag,
        message: &Message,
        sent: impl FnOnce(),
    ) -> Result<Value, StoreError> {
        let Ok(_room) = self.shared.calls.try_acquire() else {
            return Err(StoreError::Overloaded);
        };
        let mut line = lanes::of_this_thread(&self.shared).line().await?;
        let latest = self.shared.latest();
        sent();
        self.shared.stats.count(Stat::Messages);
        self.run(tag, message, latest, &mut line)
            .await
            .map_err(|error| {
                let kind = StoreError::of(&error);
                self.shared.failed_with(kind, &error.to_string());
                if kind.needs_new_connection(self.shared.options.is_cluster()) {
                    line.lost.notify_one();
                }
                kind
            })
    }

    async fn run(
        &self,
        tag: &HashTag,
        message: &Message,
        latest: Timestamp,
        line: &mut Line,
    ) -> Result<Value, RedisError> {
        let clock = self.shared.options.test_clock.as_ref();
        let command = |name: &str, script: &str| {
            let mut command: Cmd = redis::cmd(name);
            command.arg(script).arg(1 + message.counters.len());
            command.arg(tag.home());
            for counter in &message.counters {
                command.arg(counter);
            }
            command.arg(message.operation).arg(number::micros(latest));
            match clock {
                Some(clock) => command.arg(number::micros(clock.now().wall)),
                None => command.arg(""),
            };
            for argument in &message.arguments {
                command.arg(argument);
            }
            command
        };
        match line
            .connection
            .call(&command("EVALSHA", script::leases_hash()))
            .await
        {
            Err(error) if error.kind() == ServerErrorKind::NoScript.into() => {
                // Flushed, or another server than before: the text itself, once.
                self.shared.stats.count(Stat::ScriptsSent);
                line.connection.call(&command("EVAL", script::LEASES)).await
            }
            answer => answer,
        }
    }
}

fn outcomes(
    granting: Granting,
    charges: &Charges<'_>,
    length: usize,
) -> Result<(Granting, Outcomes), StoreError> {
    let outcomes = match granting.rates(length) {
        Some(reply) => reply
            .outcomes(charges, super::reply::HEAD)
            .ok_or(StoreError::Unexpected)?,
        None => Outcomes::new(),
    };
    Ok((granting, outcomes))
}

/// Whether leases of a rule can be counted in Redis; if not, what stands against it.
pub fn not_shared(rule: &crate::rules::tree::Rule) -> Option<&'static str> {
    use crate::rules::concurrency::{OnShrink, Shedding};
    let rule = rule.concurrency.as_ref()?;
    let waiting = &rule.waiting;
    if rule.limit.adapts() {
        return Some("a limit that adapts is fed by what one process sees");
    }
    if rule.limit.most() > number::LARGEST {
        return Some("a shared store counts up to 2^51");
    }
    if !rule.refund_on.is_never() {
        return Some("refund_on remembers rate units in one process");
    }
    if waiting.under_share_wait.is_some() {
        return Some("under_share_wait needs all tenants in one process");
    }
    if waiting.heavy_patience.is_some() || waiting.newest_first || waiting.queue_target.is_some() {
        return Some("heavy_patience, lifo and queue_target order a queue in one process");
    }
    if matches!(rule.shedding, Shedding::PriorityWait(_)) {
        return Some("priority_wait orders a queue in one process");
    }
    if rule.most_weight.is_some() {
        return Some("learn_weights remembers in one process what work cost");
    }
    if rule.on_shrink == OnShrink::RevokeNewest {
        return Some("on_shrink: revoke_newest needs all sessions in one process");
    }
    None
}
